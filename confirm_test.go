package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/jmqio/jmq/server/servertest"
)

// terminal returns a terminal as a program sees it, and the end that a person types into.
func terminal(t *testing.T) (program, person *os.File) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("made by Linux's calls")
	}
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	control := func(request uintptr, value *int32) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Skipf("no terminals here: %v", errno)
		}
	}
	var locked, number int32
	control(syscall.TIOCSPTLCK, &locked)
	control(syscall.TIOCGPTN, &number)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { program.Close() })
	return program, person
}

// On a terminal a person is asked, a move of a group is shown before, and only a yes does it.
func TestConfirmationOnTerminal(t *testing.T) {
	server := servertest.Start(t)
	sh := shell{t, server.Address()}
	sh.ok("", "topic create orders -p 1")
	sh.ok("", "produce orders a b")
	sh.ok("", "consume orders -g pay --from-beginning -n 1")
	program, person := terminal(t)
	run := func(answer, line string) (code int, stderr string) {
		t.Helper()
		if _, err := person.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		code = execute(t.Context(), append(strings.Fields(line), "-a", server.Address()), program, &out, &errs)
		return code, errs.String()
	}
	for _, no := range []string{"n", "", "what"} {
		code, errs := run(no, "topic delete orders")
		if code != exitError || errs != "delete topic orders with all its messages? [y/N] jmq: nothing was changed\n" {
			t.Errorf("answer %q: exit %d, %q", no, code, errs)
		}
	}
	code, errs := run("no", "group seek orders pay --to end")
	if code != exitError || !strings.Contains(errs, "dry run") || !strings.Contains(errs, "move group pay on orders to end? [y/N]") {
		t.Errorf("seek: exit %d, %q", code, errs)
	}
	if out := sh.ok("", "group lag orders pay -o csv"); !strings.Contains(out, "\npay,0,1,1,") {
		t.Errorf("after no: %s", out)
	}
	if code, errs := run("y", "group seek orders pay --to end"); code != exitOK {
		t.Errorf("seek: exit %d, %q", code, errs)
	}
	if out := sh.ok("", "group lag orders pay -o csv"); !strings.Contains(out, "\npay,0,0,2,") {
		t.Errorf("after yes: %s", out)
	}
	if code, errs := run("Yes", "topic delete orders"); code != exitOK {
		t.Errorf("delete: exit %d, %q", code, errs)
	}
	sh.fails(exitNotFound, "", "", "topic describe orders")
}

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server"
	"github.com/jmqio/jmq/wire"
)

const (
	devTopic           = "orders"
	devTopicPartitions = 8
	devGroup           = "demo"
	devLogBytesMax     = 16 << 20
)

func devCommand() *cobra.Command {
	dev := &cobra.Command{
		Use: "dev", Short: "Run everything on this machine, for trying and testing", Args: cobra.NoArgs,
		Long: `Run everything on this machine, for trying and testing, until Ctrl-C. It listens on loopback only, keeps its data in ./jmq-data
(or --data), makes the topic "orders", and says what to try.

Every key of the configuration is a flag too; see jmq config ls.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			c, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return err
			}
			log, file, err := devLog(c, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer file.Close()
			c.Logger = slog.New(log)
			c.Roles = server.Roles
			bar := newProgress(cmd.ErrOrStderr(), "recovering", true, false)
			defer bar.close()
			c.Progress = bar.set
			err = serve(cmd.Context(), c, func(ctx context.Context, s *server.Server) error {
				bar.close()
				if err := devMakeTopic(ctx, s.Admin()); err != nil {
					return err
				}
				_, err := io.WriteString(cmd.OutOrStdout(), devWelcome(cmd.OutOrStdout(), c, s, file.Name(), time.Since(started)))
				return err
			})
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "stopped; the data is still in", absolute(c.Broker.Data))
			}
			return err
		},
	}
	serverFlags(dev.Flags())
	return dev
}

// devLog logs to a file in the data folder, and to the terminal only what a person must see.
func devLog(c server.Config, terminal io.Writer) (slog.Handler, *os.File, error) {
	if err := os.MkdirAll(c.Broker.Data, 0o700); err != nil {
		return nil, nil, server.FolderError(absolute(c.Broker.Data), err)
	}
	name := filepath.Join(absolute(c.Broker.Data), "jmq.log")
	if info, err := os.Stat(name); err == nil && info.Size() > devLogBytesMax {
		_ = os.Rename(name, name+".old") // a long log is better than no broker
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, server.FolderError(absolute(c.Broker.Data), err)
	}
	return slog.NewMultiHandler(logHandler(file, c.Log, c.Log.Level), logHandler(terminal, c.Log, "warn")), file, nil
}

// devMakeTopic makes the topic of the welcome; one that is there with another shape is left alone.
func devMakeTopic(ctx context.Context, admin wire.Admin) error {
	_, err := admin.CreateTopic(ctx, &wire.CreateTopicRequest{Topic: devTopic, Partitions: devTopicPartitions})
	if err != nil && wire.CodeOf(err) != wire.CodeTopicExists {
		return fmt.Errorf("create topic %s: %w", devTopic, err)
	}
	return nil
}

// devWelcome is what a person needs next. Its last commands work as they stand, from any folder.
func devWelcome(w io.Writer, c server.Config, s *server.Server, log string, took time.Duration) string {
	number, _ := buildVersion()
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s, %.2f s)\n\n", bold(w, "jmq is ready"), number, took.Seconds())
	fmt.Fprintf(&b, "  wire    %s\n", s.WireAddress())
	fmt.Fprintf(&b, "  admin   http://%s  (/metrics /healthz /readyz /debug/pprof/)\n", s.AdminAddress())
	fmt.Fprintf(&b, "  data    %s\n", absolute(c.Broker.Data))
	fmt.Fprintf(&b, "  log     %s\n", log)
	fmt.Fprintf(&b, "  topic   %s\n\n", devTopic)
	self, at := ownCommand(), ""
	if p, err := new(connection).where(); s.WireAddress() != addressDefault || err != nil || p.address != addressDefault {
		at = " --address " + s.WireAddress()
	}
	fmt.Fprintf(&b, "Try this in another terminal:\n\n")
	fmt.Fprintf(&b, "  %s produce%s %s 'hello'\n", self, at, devTopic)
	fmt.Fprintf(&b, "  %s consume%s %s -g %s --from-beginning -n 1\n\n", self, at, devTopic, devGroup)
	fmt.Fprintf(&b, "Ctrl-C stops it; the data stays.\n")
	return b.String()
}

// ownCommand is how a shell in any folder starts this binary.
func ownCommand() string {
	self, err := os.Executable()
	if err != nil {
		return "jmq"
	}
	if found, err := exec.LookPath("jmq"); err == nil {
		a, errA := os.Stat(found)
		b, errB := os.Stat(self)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return "jmq"
		}
	}
	return shellWord(self)
}

// shellWord quotes s where a shell would take it apart.
func shellWord(s string) string {
	plain := !slices.ContainsFunc([]rune(s), func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%", r)
	})
	if plain && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// absolute is for people to read; a working folder that is gone leaves the name as it was.
func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

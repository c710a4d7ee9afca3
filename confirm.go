package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// confirmation is the flag of every command that destroys something or makes others do their work again.
type confirmation struct{ yes bool }

func (c *confirmation) flag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do it without asking; needed where there is no terminal")
}

// ask returns nil when it may be done: what is a question's text without its end.
func (c *confirmation) ask(cmd *cobra.Command, what string) error {
	if c.yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin()) {
		return usagef("%s: say --yes to do it, there is no terminal to ask on", what)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s? [y/N] ", what)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // an end without an answer is a no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

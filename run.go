package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/server"
)

func runCommand() *cobra.Command {
	run := &cobra.Command{Use: "run", Short: "Run the servers of a role"}
	role := &cobra.Command{
		Use: "broker", Short: "Run a broker", Args: cobra.NoArgs,
		Long: `Run a broker until it is told to stop (Ctrl-C or SIGTERM). It logs to the standard error.

Every key of the configuration is a flag too; see jmq config ls.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return err
			}
			c.Logger = slog.New(logHandler(cmd.ErrOrStderr(), c.Log, c.Log.Level))
			return serve(cmd.Context(), c, nil)
		},
	}
	serverFlags(role.Flags())
	run.AddCommand(role)
	return run
}

// serverFlags are those of every command that starts servers.
func serverFlags(f *pflag.FlagSet) {
	configFlags(f)
	f.VarP(f.Lookup(keyData).Value, flagData, "", "the same as --"+keyData)
}

// serve runs a server until ctx ends and calls ready, if there is one, when it serves; an error of ready stops it.
func serve(ctx context.Context, c server.Config, ready func(context.Context, *server.Server) error) error {
	c.Version, _ = buildVersion()
	s, err := server.New(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan error, 1)
	go func() { // ends with ctx at the latest; received below
		select {
		case <-s.Ready():
		case <-ctx.Done():
		}
		var err error
		if ready != nil && ctx.Err() == nil {
			if err = ready(ctx, s); err != nil && ctx.Err() == nil {
				cancel()
			} else {
				err = nil // it failed because a stop was asked for
			}
		}
		told <- err
	}()
	err = s.Run(ctx)
	cancel()
	return errors.Join(err, <-told)
}

func logHandler(w io.Writer, c server.LogConfig, level string) slog.Handler {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // Validate has seen it
	o := &slog.HandlerOptions{Level: l}
	if c.Format == "json" {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

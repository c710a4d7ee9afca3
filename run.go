package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jmqio/jmq/server"
)

func runCommand() *cobra.Command {
	run := &cobra.Command{
		Use: "run ROLE...", Short: "Run the servers of one role or more",
		Long: `Run the servers of one role or more in this process until it is told to stop (Ctrl-C or SIGTERM). It logs to the standard error.

Roles:
  registry   holds the metadata (topics, apps, rights, limits, routes) in its database, and tells it to everyone
  broker     takes, keeps and gives messages

A broker takes its topics and rights from the registry of its own process, or from those that node.registry.addresses names; without
either it stands alone: it keeps its topics itself, and everyone may do everything.

Every key of the configuration is a flag too; see jmq config ls.`,
		Example:   "  jmq run broker\n  jmq run registry broker --data /var/lib/jmq",
		ValidArgs: []string{string(server.RoleRegistry), string(server.RoleBroker)},
		RunE: func(cmd *cobra.Command, args []string) error {
			roles, err := parseRoles(args)
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return err
			}
			c.Roles = roles
			c.Logger = slog.New(logHandler(cmd.ErrOrStderr(), c.Log, c.Log.Level))
			return serve(cmd.Context(), c, nil)
		},
	}
	serverFlags(run.Flags())
	return run
}

// parseRoles takes the names of roles, each once.
func parseRoles(args []string) ([]server.Role, error) {
	var known []string
	for _, r := range server.Roles {
		known = append(known, string(r))
	}
	var roles []server.Role
	for _, a := range args {
		switch r := server.Role(a); {
		case !slices.Contains(server.Roles, r):
			return nil, usageError(fmt.Errorf("unknown role %q: the roles are %s", a, strings.Join(known, ", ")))
		case slices.Contains(roles, r):
			return nil, usageError(fmt.Errorf("role %s is there twice", a))
		default:
			roles = append(roles, r)
		}
	}
	if len(roles) == 0 {
		return nil, usageError(fmt.Errorf("name a role: %s; or run all of them on this machine: jmq dev", strings.Join(known, ", ")))
	}
	return roles, nil
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
		if ctx.Err() == nil {
			tellSystemd(systemd.SdNotifyReady)
		}
		if ready != nil && ctx.Err() == nil {
			if err = ready(ctx, s); err != nil && ctx.Err() == nil {
				cancel()
			} else {
				err = nil // it failed because a stop was asked for
			}
		}
		told <- err
	}()
	stopping := context.AfterFunc(ctx, func() { tellSystemd(systemd.SdNotifyStopping) })
	defer stopping()
	watchdog := feedWatchdog(ctx)
	reloads := reloadAtHangup(ctx, s, c)
	err = s.Run(ctx)
	cancel()
	watchdog.Wait()
	reloads.Wait()
	return errors.Join(err, <-told)
}

// reloadAtHangup has the server read its certificates again at each SIGHUP, until ctx ends. Without certificates that signal ends the
// process as it always did: a terminal that is closed sends it.
func reloadAtHangup(ctx context.Context, s *server.Server, c server.Config) *sync.WaitGroup {
	var done sync.WaitGroup
	if c.Node.TLS.CertFile == "" {
		return &done
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done.Go(func() {
		defer signal.Stop(hangups)
		for {
			select {
			case <-hangups:
				_ = s.Reload() // it is logged there
			case <-ctx.Done():
				return
			}
		}
	})
	return &done
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

// tellSystemd tells the service manager a state (sd_notify(3)); without one, or on an error, nothing happens: it would find out.
func tellSystemd(state string) { _, _ = systemd.SdNotify(false, state) }

// feedWatchdog keeps the service manager's watchdog quiet until ctx ends, if it has one for us.
func feedWatchdog(ctx context.Context) *sync.WaitGroup {
	var fed sync.WaitGroup
	every, err := systemd.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return &fed
	}
	fed.Go(func() {
		tick := time.NewTicker(every / 2)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				tellSystemd(systemd.SdNotifyWatchdog)
			case <-ctx.Done():
				return
			}
		}
	})
	return &fed
}

package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (make build); without it the module's own version is shown.
var version = ""

// buildVersion is what this binary calls itself.
func buildVersion() (number, commit string) {
	number, commit = version, "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		if number == "" {
			number = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	if number == "" || number == "(devel)" {
		number = "devel"
	}
	return number, commit
}

type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "version", Short: "Say which jmq this is", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			number, commit := buildVersion()
			v := versionInfo{number, commit, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return printListing(cmd.OutOrStdout(), output, listing{
				header: []string{"version", "commit", "go", "system"},
				rows:   [][]any{{v.Version, v.Commit, v.Go, v.System}},
				data:   v,
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

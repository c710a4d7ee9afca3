package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/jmqio/jmq/server/meta/sqlstore"
)

type keyInfo struct {
	Key     string `json:"key"`
	Default string `json:"default"`
	Env     string `json:"env"`
	Help    string `json:"help"`
}

func configCommand() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "The configuration: keys, and what holds now"}
	var output string
	ls := &cobra.Command{
		Use: "ls", Short: "List every key with its default", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := listing{header: []string{"key", "default", "meaning"}}
			var data []keyInfo
			for _, k := range configKeys() {
				data = append(data, keyInfo{k.name, k.defaultText(), k.env(), k.help})
				l.rows = append(l.rows, []any{k.name, k.defaultText(), k.help})
			}
			l.data = data
			return printListing(cmd.OutOrStdout(), output, l)
		},
	}
	outputFlag(ls, &output)
	check := &cobra.Command{
		Use: "check", Short: "Read file, environment and flags, and show what would hold", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return err
			}
			for _, k := range configKeys() {
				v := k.field(&c).Interface()
				if dsn := c.Registry.DSN; k.name == "registry.dsn" && dsn != "" {
					v = sqlstore.Location{DSN: dsn}.String() // without its password
				}
				fmt.Fprintln(cmd.OutOrStdout(), k.name, "=", v)
			}
			return nil
		},
	}
	configFlags(check.Flags())
	config.AddCommand(ls, check)
	return config
}

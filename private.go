package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jmqio/jmq/wire"
)

// Files with secrets, and those that say where secrets are sent, are for their owner alone.

// checkPrivate refuses a file that others may read or write. One that is not there is for its reader to complain about.
func checkPrivate(what, name string) error {
	info, err := os.Stat(name)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s %s is open to others (mode %#o): chmod 600 %s", what, name, info.Mode().Perm(), shellWord(name))
	}
	return nil
}

// writePrivate writes a file for its owner alone: whole, or not at all.
func writePrivate(name string, content []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// writeCredential writes a credential as the SDK reads it (client.WithCredentialsFile).
func writeCredential(name, id string, secret wire.Secret) error {
	if err := writePrivate(name, []byte("id: "+id+"\nsecret: "+string(secret)+"\n")); err != nil {
		return fmt.Errorf("write the credential: %w", err)
	}
	return nil
}

package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// shim registers by a file and writes another one on SIGTERM.
func shim(dir string) error {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	if err := os.WriteFile(filepath.Join(dir, "vm.json"), []byte("{}\n"), 0o600); err != nil {
		return err
	}
	<-terms
	temp := filepath.Join(dir, ".shutdown")
	if err := os.WriteFile(temp, []byte("{}\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, "shutdown"))
}

// durable makes a file durable: write, fsync, rename, and fsync of the directory.
func durable(dir, name string, data []byte) error {
	temp := filepath.Join(dir, "."+name)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// read reads every regular file of a directory.
func read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if _, err := os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

// shelf keeps Events that the API server has not taken, one file each.
type shelf struct{ dir string }

const (
	shelfSuffix = ".json"
	maxShelf    = 4096 // files that are read
)

func (s shelf) Put(name string, content []byte) error {
	if err := durable.Real().MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for Events: %w", err)
	}
	return durable.WriteFile(s.dir, name+shelfSuffix, content, 0o600)
}

func (s shelf) Delete(name string) error {
	if err := durable.Remove(s.dir, name+shelfSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// All reads what can be read; the error says what cannot.
func (s shelf) All() ([][]byte, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var contents [][]byte
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), shelfSuffix) || len(contents) >= maxShelf {
			continue
		}
		content, readErr := os.ReadFile(filepath.Join(s.dir, e.Name()))
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		contents = append(contents, content)
	}
	return contents, err
}

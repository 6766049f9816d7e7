package gracecache

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// FuzzDecode gives the decoder whole files.
func FuzzDecode(f *testing.F) {
	for _, golden := range goldenFiles(f) {
		f.Add(golden)
		f.Add(golden[:len(golden)/2])
		f.Add(bytes.Replace(golden, []byte(`"version": 1`), []byte(`"version": 2`), 1))
	}
	f.Add([]byte("\x00\x00"))
	f.Add([]byte(`{"version":1,"checksum":"","record":null}`))
	f.Fuzz(checkDecode)
}

// FuzzDecodeRecord gets past the checksum: it gives the decoder a record in a valid
// envelope.
func FuzzDecodeRecord(f *testing.F) {
	for _, golden := range goldenFiles(f) {
		var env envelope
		if err := json.Unmarshal(golden, &env); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(env.Record))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecode(t, seal(raw)) })
}

// checkDecode checks that a decoded record can be written again and then means the same.
func checkDecode(t *testing.T, data []byte) {
	t.Helper()
	rec, err := decode(data)
	if err != nil {
		return
	}
	cut := rec
	cut.Shutdown.StartedAt = rec.Shutdown.StartedAt.Truncate(1e6)
	cut.Shutdown.DeadlineAt = rec.Shutdown.DeadlineAt.Truncate(1e6)
	again, err := encode(rec)
	if err != nil {
		t.Fatalf("cannot be written again: %v", err)
	}
	if got, err := decode(again); err != nil || got != cut {
		t.Fatalf("became another record (%v):\n%+v\n%+v", err, rec, got)
	}
}

func goldenFiles(f *testing.F) [][]byte {
	f.Helper()
	paths, err := filepath.Glob("testdata/v*.json")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no golden files: %v", err)
	}
	files := make([][]byte, 0, len(paths))
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		files = append(files, data)
	}
	return files
}

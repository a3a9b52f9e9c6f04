package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	opened, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must.Do(t, os.WriteFile(opened, []byte("0123456789"), 0o600))
	must.Do(t, os.Symlink(opened, link))
	must.Do(t, syscall.Mkfifo(fifo, 0o600))
	for _, tc := range []struct {
		name, path string
		limit      int64
		want       error
		text       string // in the error
	}{
		{"at the limit", opened, 10, nil, ""},
		{"behind a link", link, 10, nil, ""},
		{"over the limit", opened, 9, file.ErrTooLarge, opened + " is larger than allowed: it has 10 bytes, the limit is 9"},
		{"FIFO without a writer", fifo, 10, file.ErrNotRegular, fifo + " is not a regular file"},
		{"device without an end", "/dev/zero", 10, file.ErrNotRegular, "/dev/zero is not a regular file"},
		{"directory", dir, 1 << 20, file.ErrNotRegular, dir + " is not a regular file"},
		{"no file", filepath.Join(dir, "none"), 10, fs.ErrNotExist, "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data, info, err := file.Read(tc.path, tc.limit)
			switch {
			case !errors.Is(err, tc.want):
				t.Fatalf("error %v, want %v", err, tc.want)
			case err != nil && !strings.Contains(err.Error(), tc.text):
				t.Errorf("error %q, want one with %q", err, tc.text)
			case err == nil && (string(data) != "0123456789" || info.Size() != 10):
				t.Errorf("read %q of a file of %d bytes", data, info.Size())
			}
		})
	}
}

// The size that the file system gives may be wrong: the content counts.
func TestReadBeyondStatedSize(t *testing.T) {
	const path = "/proc/self/status" // says that it is empty
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Skip("no file here that holds more than its size says")
	}
	if _, _, err := file.Read(path, 16); !errors.Is(err, file.ErrTooLarge) {
		t.Errorf("error %v, want %v", err, file.ErrTooLarge)
	}
	if data, _, err := file.Read(path, 1<<20); err != nil || len(data) == 0 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

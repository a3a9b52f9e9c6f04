package file

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// The reasons for which a file is refused. Errors of Open and Read wrap one of them,
// or are those of package os.
var (
	ErrNotRegular = errors.New("is not a regular file")
	ErrTooLarge   = errors.New("is larger than allowed")
)

// MaxPEM is how large a file with a key or with certificates may be, in bytes: room for several
// hundred authorities.
const MaxPEM = 1 << 20

// Open opens the file at path for reading, and returns it with its FileInfo. It does
// not block, and follows symbolic links. It fails with ErrNotRegular for anything but
// a regular file, and with ErrTooLarge when the file has more than limit bytes; the
// errors name the path. The caller closes the file.
func Open(path string, limit int64) (*os.File, fs.FileInfo, error) {
	// Checked before it is opened, as opening a device may have an effect.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if err := checkFileInfo(path, info, limit); err != nil {
		return nil, nil, err
	}
	// It may have been replaced since, so it is checked again. With O_NONBLOCK a FIFO
	// without a writer is opened at once; a regular file is not affected.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err = f.Stat()
	if err == nil {
		err = checkFileInfo(path, info, limit)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func checkFileInfo(path string, info fs.FileInfo, limit int64) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", path, ErrNotRegular)
	case info.Size() > limit:
		return fmt.Errorf("%s %w: it has %d bytes, the limit is %d", path, ErrTooLarge, info.Size(), limit)
	}
	return nil
}

// Read returns the content of the file at path, and its FileInfo from before it was
// read. It fails as Open does, and also with ErrTooLarge when the file grows beyond
// limit bytes while it is read.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := Open(path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead) // without it the buffer would grow in many steps
	if _, err := data.ReadFrom(&limitedContent{file: f, limit: limit, left: limit}); err != nil {
		return nil, nil, err
	}
	return data.Bytes(), info, nil
}

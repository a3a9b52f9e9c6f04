//go:build !unix

package journal

import (
	"errors"
	"os"
)

// lockFile fails: where there is no flock, nothing keeps two processes apart.
func lockFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

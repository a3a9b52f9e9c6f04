package file_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestTLS reads files that are right, that are not there, and that are others.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
	for _, missing := range [][3]string{{files.Cert, files.Key, ""}, {"", "", files.CA}} {
		if _, err := file.TLS(missing[0], missing[1], missing[2]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without files: %v", err)
		}
	}
	authority := must.Get(mtls.NewAuthority("test", time.Hour))(t)
	must.Do(t, must.Get(authority.Issue(mtls.Leaf{Name: "client"}))(t).WriteFiles(files))
	config := must.Get(file.TLS(files.Cert, files.Key, files.CA))(t)
	if len(config.Certificates) != 1 || config.RootCAs == nil {
		t.Errorf("the configuration is %+v", config)
	}
	if config := must.Get(file.TLS("", "", ""))(t); len(config.Certificates) > 0 || config.RootCAs != nil {
		t.Errorf("without names the configuration is %+v", config)
	}
	for want, names := range map[string][3]string{
		"key: stat " + files.Key + "x: no such file":            {files.Cert, files.Key + "x", ""},
		"key " + files.CA + " of certificate " + files.Cert:     {files.Cert, files.CA, ""},
		"CA bundle " + files.Key + ": holds no PEM certificate": {"", "", files.Key},
	} {
		if _, err := file.TLS(names[0], names[1], names[2]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error is %v, expected %s", err, want)
		}
	}
}

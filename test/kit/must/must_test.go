package must_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// recorder is a test that ends by a panic, with what ended it.
type recorder struct{ testing.TB }

func (recorder) Helper() {}

func (recorder) Cleanup(func()) {}

func (recorder) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (recorder) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func endedBy(f func()) (with any) {
	defer func() { with = recover() }()
	f()
	return nil
}

func TestMust(t *testing.T) {
	failed := errors.New("no such thing")
	for name, tc := range map[string]struct {
		f    func()
		want any
	}{
		"do":              {func() { must.Do(recorder{}, nil) }, nil},
		"do what fails":   {func() { must.Do(recorder{}, failed) }, "no such thing"},
		"get":             {func() { must.Get(1, nil)(recorder{}) }, nil},
		"get what is not": {func() { must.Get(1, failed)(recorder{}) }, "no such thing"},
		"value":           {func() { must.Value(1, nil) }, nil},
		"value in error":  {func() { must.Value(1, failed) }, failed},
	} {
		if got := endedBy(tc.f); got != tc.want {
			t.Errorf("%s: the test ends with %v, want %v", name, got, tc.want)
		}
	}
	if got := must.Get("value", nil)(t); got != "value" {
		t.Errorf("Get returns %q", got)
	}
	if got := must.Value("value", nil); got != "value" {
		t.Errorf("Value returns %q", got)
	}
}

// What runs ends before the test does, and is waited for once.
func TestRun(t *testing.T) {
	ended := 0
	var failed error
	until := func(ctx context.Context) error {
		<-ctx.Done()
		ended++
		return failed
	}
	t.Run("to the end of the test", func(t *testing.T) { must.Run(t, until) })
	stop := must.Run(t, until)
	if ended != 1 {
		t.Errorf("%d have ended, want that of the test that has", ended)
	}
	stop()
	stop()
	if ended != 2 {
		t.Errorf("%d have ended, want both", ended)
	}
	failed = errors.New("no such thing")
	if got := endedBy(must.Run(recorder{t}, until)); got != "ended with no such thing" {
		t.Errorf("the test ends with %v", got)
	}
}

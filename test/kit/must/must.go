// Package must ends a test at once where something fails that the test only builds on.
package must

import (
	"context"
	"sync"
	"testing"
)

// Get returns what a function has returned beside its error, and ends the test where
// there is an error:
//
//	registry := must.Get(file.Read(path))(t)
//
// The test comes last because Go hands the results of a function on only where they
// are all of the arguments.
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return value
	}
}

// Do ends the test where there is an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value returns a value that the test spells out itself, and panics where that is wrong:
//
//	must.Value(federation.ParseFQDN("shop.example"))
func Value[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Run runs f until the test ends or the returned function is called, and fails the test
// where f then returns an error.
func Run(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

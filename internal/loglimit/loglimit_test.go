package loglimit_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// newLogger returns a limited logger, and what it has written.
func newLogger() (*slog.Logger, *testlog.Buffer) {
	out := new(testlog.Buffer)
	return loglimit.NewLogger(out.Logger()), out
}

func TestEachPeerHasItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := newLogger()
		loud, quiet := logger.With("peer", "loud"), logger.With("peer", "quiet")
		for i := range 1000 {
			loud.Warn("refused", "n", i)
		}
		loud.Error("refused") // of another level
		loud.Warn("lost")     // with another message
		quiet.Warn("refused")
		if got, want := strings.Count(out.String(), "\n"), loglimit.PerMinute+3; got != want {
			t.Errorf("%d lines, want %d:\n%s", got, want, out)
		}
		if !strings.Contains(out.String(), "level=WARN msg=refused peer=quiet\n") {
			t.Errorf("the quiet peer is not heard:\n%s", out)
		}
	})
}

func TestLeftOutLinesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := newLogger()
		logger = logger.With("peer", "loud")
		for range 3 {
			out.Reset()
			for range 1000 {
				logger.Warn("refused")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			want := fmt.Sprintf("level=WARN msg=\"more lines like this were left out\" peer=loud line=refused count=%d\n", 1000-loglimit.PerMinute)
			if !strings.HasSuffix(out.String(), want) || strings.Count(out.String(), "\n") != loglimit.PerMinute+1 {
				t.Errorf("got\n%s\nwant %d lines and then\n%s", out, loglimit.PerMinute, want)
			}
		}
	})
}

func TestFewLinesAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := newLogger()
		for range 5 * loglimit.PerMinute {
			logger.Warn("lost")
			time.Sleep(time.Minute / loglimit.PerMinute)
		}
		synctest.Wait()
		if got, want := strings.Count(out.String(), "msg=lost\n"), 5*loglimit.PerMinute; got != want || strings.Contains(out.String(), "left out") {
			t.Errorf("%d lines, want %d and no others:\n%s", got, want, out)
		}
	})
}

// A peer that pretends to be another one with each line fills neither the log nor
// memory.
func TestManyPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := newLogger()
		const peers = 20_000
		for i := range peers {
			logger.With("peer", i).Warn("turned away")
		}
		most := 4096 + loglimit.PerMinute
		if got := strings.Count(out.String(), "\n"); got > most {
			t.Errorf("%d lines of %d peers in a minute, want %d at most", got, peers, most)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !strings.Contains(out.String(), fmt.Sprintf("line=\"turned away\" count=%d\n", peers-most)) {
			t.Error("the lines left out are not counted")
		}
		out.Reset()
		logger.With("peer", "later").Warn("turned away")
		if got := out.String(); got != "level=WARN msg=\"turned away\" peer=later\n" {
			t.Errorf("a minute later: %q", got)
		}
	})
}

func TestLimitedLoggerIsNotWrapped(t *testing.T) {
	logger, _ := newLogger()
	if loglimit.NewLogger(logger) != logger || loglimit.NewLogger(nil).Enabled(t.Context(), slog.LevelError) {
		t.Error("a limited logger, or none, is wrapped")
	}
}

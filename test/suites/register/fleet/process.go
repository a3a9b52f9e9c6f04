package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"
)

const reporting = 20 * time.Millisecond // between two reports, where something has changed

// Main is the main function of a fleet that is a process of its own, which can be
// killed. The argument is a Config in JSON. A line on stdin has it begin to register;
// Stats are written to stdout, one in a line, when they have changed. It ends with
// stdin, and so with the process that started it.
func Main(ctx context.Context, argument string, stdin io.Reader, stdout io.Writer) error {
	var c Config
	if err := json.Unmarshal([]byte(argument), &c); err != nil { //nolint:musttag // both sides are this code
		return err
	}
	f := New(c)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // it ends with the process
		defer cancel()
		lines := bufio.NewScanner(stdin)
		begin := sync.OnceFunc(f.Begin)
		for lines.Scan() {
			begin()
		}
	}()
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		defer cancel()
		err = f.Run(ctx)
	})
	ticker := time.NewTicker(reporting)
	defer ticker.Stop()
	var said Stats
	for ctx.Err() == nil {
		if s := f.Stats(); s != said {
			said = s
			if err := json.NewEncoder(stdout).Encode(s); err != nil { //nolint:musttag // as above
				break
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	cancel()
	running.Wait()
	return err
}

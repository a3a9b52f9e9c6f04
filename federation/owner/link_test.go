package owner

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// oneWay is the delay of the link in one direction.
const oneWay = 25 * time.Millisecond

// distant returns the near end of a long link to conn. Carrying counts the goroutines
// of the link.
func distant(conn net.Conn, carrying *sync.WaitGroup) net.Conn {
	near, far := net.Pipe()
	carrying.Go(func() { carry(conn, far) })
	carrying.Go(func() { carry(far, conn) })
	return near
}

// carry copies from one end to the other, with the delay, until one of them closes.
func carry(to, from net.Conn) {
	type packet struct {
		data []byte
		due  time.Time
	}
	packets := make(chan packet, 1<<16)
	go func() {
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			packets <- packet{bytes.Clone(buffer[:n]), time.Now().Add(oneWay)}
			if err != nil {
				close(packets)
				return
			}
		}
	}()
	for p := range packets {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	for range packets { // until the reader ends
	}
}

// counting is a Sink that counts services, and ends with the catalog.
type counting struct {
	services int
	whole    func()
}

func (*counting) Holds(context.Context) resume.Digests                 { return nil }
func (*counting) Attempted()                                           {}
func (*counting) Opened()                                              {}
func (*counting) Announced(context.Context, stream.Announcement) error { return nil }
func (*counting) Answered([]stream.Update)                             {}
func (*counting) Complete() bool                                       { return false }
func (*counting) Lost(stream.Loss)                                     {}
func (*counting) Waiting(time.Time)                                    {}

func (c *counting) Apply(updates []stream.Update) {
	for _, u := range updates {
		switch u.Operation {
		case federation.Upsert:
			c.services++
		case federation.End:
			c.whole()
		}
	}
}

// identity is a stream.Identity whose credentials never change.
type identity struct {
	credentials.TransportCredentials
}

func (i identity) Credentials(string) credentials.TransportCredentials { return i.TransportCredentials }
func (identity) Changed() <-chan struct{}                              { return nil }

func (identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// TestWindowFillsALongLink downloads 10,000 services over a link on which an
// acknowledgement takes 50 ms. With the clock of a synctest bubble, only round trips
// take time: some to connect, and then one for each window. A short test downloads
// 1,000 services.
func TestWindowFillsALongLink(t *testing.T) {
	const roundTrip = 2 * oneWay
	services := unlessShort(10_000, 1000)
	for _, tt := range []struct {
		window      int
		least, most time.Duration
	}{
		{1, time.Duration(services) * roundTrip, time.Duration(services+10) * roundTrip},
		{256, 0, time.Duration(services/256+10) * roundTrip},
		{512, 0, 2 * time.Second},
	} {
		t.Run(strconv.Itoa(tt.window), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, func(c *Config) { c.Window = tt.window })
				set(t, f.registry, catalogOf(services))
				ctx, cancel := context.WithCancel(t.Context())
				own := f.credentials(t, mtls.Leaf{Name: "test", URIs: []string{consumerID}})
				sink := &counting{whole: cancel}
				var carrying sync.WaitGroup
				defer carrying.Wait()
				c := must.Get(stream.New(stream.Config{
					Addresses: []string{"owner.example:8008"},
					Identity:  identity{own},
					Sink:      sink,
					Dial: func(ctx context.Context, _ string) (net.Conn, error) {
						conn, err := f.listener.DialContext(ctx)
						if err != nil {
							return nil, err
						}
						return distant(conn, &carrying), nil
					},
				}))(t)
				begun := time.Now()
				must.Do(t, c.Run(ctx))
				took := time.Since(begun)
				t.Logf("%d services in %v", sink.services, took)
				if sink.services != services {
					t.Errorf("%d services arrived, expected %d", sink.services, services)
				}
				if took < tt.least || took > tt.most {
					t.Errorf("the download took %v, expected %v to %v", took, tt.least, tt.most)
				}
			})
		})
	}
}

package consumer

import (
	"errors"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestUnreadablePath has an owner say something that is no path: a mirror that wants to know it
// takes nothing of the stream, and one that does not takes all.
func TestUnreadablePath(t *testing.T) {
	unreadable := errors.New("unreadable")
	for _, accept := range []func(wire.OwnerPath) error{nil, func(wire.OwnerPath) error {
		t.Error("asked about a path that cannot be read")
		return nil
	}} {
		m := must.Get(New(Config{
			Subscription: Subscription{Addresses: []string{"owner:1"}, Identity: mtls.Consumer{}}, Publish: func(Changes) {}, Accept: accept,
		}))(t)
		err := mirrorSink{m}.AcceptHeader(t.Context(), stream.Announcement{PathErr: unreadable})
		if _, unwanted := errors.AsType[stream.UnwantedError](err); unwanted != (accept != nil) || errors.Is(err, unreadable) != unwanted {
			t.Errorf("the stream ends with %v", err)
		}
	}
}

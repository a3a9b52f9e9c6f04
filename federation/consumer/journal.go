package consumer

import (
	"log/slog"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/loglimit"
)

// journal logs the changes in what is known of the owner. What repeats with
// every attempt, or with every message, it logs once; how many lines a minute may
// have is for its logger.
type journal struct {
	logger *slog.Logger

	address string          // that is connected, "" for none
	lost    time.Time       // when the last connection was lost, zero before there was one
	told    map[string]bool // addresses and kinds of ends logged since then
	stuck   map[string]bool // the same of ends to which every stream comes, until one ends otherwise
	refusal map[string]bool // services and reasons that were logged
}

// maxRefusals bounds the refusals that are remembered: a catalog may be full of
// them, and an owner may make up new ones for ever.
const maxRefusals = 100

func newJournal(logger *slog.Logger) journal {
	return journal{
		logger: loglimit.Logger(logger), told: make(map[string]bool), stuck: make(map[string]bool), refusal: make(map[string]bool),
	}
}

// connected notes that a valid message came from the address. That it came back
// is not worth a line where one is written when its catalog is complete again.
func (j *journal) connected(address string) {
	switch {
	case j.address == address:
		return
	case j.lost.IsZero():
		j.logger.Info("connected to owner", "address", address)
	default:
		j.logger.Debug("owner is back", "address", address, "after", time.Since(j.lost).Round(time.Second))
	}
	j.address = address
	clear(j.told)
}

// ended notes the end of a session, after which the owner may be parked.
func (j *journal) ended(address string, e end, parked bool) {
	attributes := []any{"address", address, "reason", e.Error()}
	if remedy := e.remedy(); remedy != "" {
		attributes = append(attributes, "remedy", remedy)
	}
	key := address + " " + e.kind()
	text := "not connected to owner, still trying"
	again := j.told[key] || e.verdict == slow && j.stuck[key]
	if j.address != "" {
		if e.verdict != slow {
			clear(j.stuck)
		}
		text = "owner is lost, trying to connect again"
		j.address, j.lost = "", time.Now()
	}
	switch {
	case parked:
		j.logger.Error("owner is parked: not tried again before the certificate, key or CA files or the configuration change", attributes...)
	case e.verdict == park:
		j.logger.Warn("address of owner is not tried again before the certificate, key or CA files or the configuration change", attributes...)
	case !again:
		j.told[key], j.stuck[key] = true, true
		j.logger.Warn(text, attributes...)
	}
}

// calmed notes that the owner objected to the pings, which is no loss.
func (j *journal) calmed(address string, interval time.Duration) {
	j.logger.Warn("owner gets more pings than it allows (too_many_pings), interval doubled; set keepalive to a value that it allows",
		"address", address, "keepalive", interval)
}

// refused notes a message that was refused: once for a service and a reason, as
// long as there are few.
func (j *journal) refused(address string, err *federation.InvalidError) {
	key := string(err.Reason) + " " + err.Service
	if j.refusal[key] {
		return
	}
	if len(j.refusal) >= maxRefusals {
		clear(j.refusal)
	}
	j.refusal[key] = true
	j.logger.Warn("message of owner refused", "address", address, "reason", string(err.Reason), "error", err)
}

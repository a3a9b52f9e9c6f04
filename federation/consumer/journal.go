package consumer

import (
	"log/slog"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// journal logs the changes in what is known of the owner. What repeats with
// every attempt, or with every message, it logs once.
type journal struct {
	logger *slog.Logger

	address string          // that is connected, "" for none
	lost    time.Time       // when the last connection was lost, zero before there was one
	told    map[string]bool // addresses and kinds of ends logged since then
	refusal map[string]bool // services and reasons that were logged
}

// maxRefusals bounds the refusals that are logged: a catalog may be full of
// them, and an owner may make up new ones for ever.
const maxRefusals = 100

func newJournal(logger *slog.Logger) journal {
	return journal{logger: logger, told: make(map[string]bool), refusal: make(map[string]bool)}
}

// connected notes that a valid message came from the address.
func (j *journal) connected(address string) {
	switch {
	case j.address == address:
		return
	case j.lost.IsZero():
		j.logger.Info("connected to owner", "address", address)
	default:
		j.logger.Info("owner is back", "address", address, "after", time.Since(j.lost).Round(time.Second))
	}
	j.address = address
	clear(j.told)
}

// ended notes the end of a session.
func (j *journal) ended(address string, e end) {
	attributes := []any{"address", address, "reason", e.Error()}
	if remedy := e.remedy(); remedy != "" {
		attributes = append(attributes, "remedy", remedy)
	}
	text := "not connected to owner, still trying"
	if j.address != "" {
		text = "owner is lost, trying to connect again"
		j.address, j.lost = "", time.Now()
	}
	key := address + " " + e.kind()
	switch {
	case e.verdict == park:
		j.logger.Error("owner is parked: not tried again before the certificate, key or CA files or the configuration change", attributes...)
	case !j.told[key]:
		j.told[key] = true
		j.logger.Warn(text, attributes...)
	}
}

// calmed notes that the owner objected to the pings, which is no loss.
func (j *journal) calmed(address string, interval time.Duration) {
	j.logger.Warn("owner gets more pings than it allows (too_many_pings), interval doubled; set keepalive to a value that it allows",
		"address", address, "keepalive", interval)
}

// refused notes a message that was refused: once for a service and a reason.
func (j *journal) refused(address string, err *federation.InvalidError) {
	key := string(err.Reason) + " " + err.Service
	if j.refusal[key] || len(j.refusal) > maxRefusals {
		return
	}
	j.refusal[key] = true
	if len(j.refusal) > maxRefusals {
		j.logger.Warn("more messages of owner refused; they are only counted", "address", address)
		return
	}
	j.logger.Warn("message of owner refused", "address", address, "reason", string(err.Reason), "error", err)
}

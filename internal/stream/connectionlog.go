package stream

import (
	"log/slog"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

// connectionLog logs changes of the connection to one owner, and remembers what it has logged: an
// end or a refusal that repeats with every attempt is one line. Only the goroutine of Run uses it.
// Its logger bounds the lines a minute; maxRefusals bounds the refusals that are remembered, and
// the ends are as many as there are addresses and kinds of ends. A refusal that was forgotten is
// logged once more, which is better than memory that an owner can fill.
type connectionLog struct {
	logger *slog.Logger

	address  string          // of the replica that is connected, or ""
	lost     time.Time       // when the last connection was lost; zero before there was one
	ends     map[string]bool // addresses and kinds of ends that were logged since then
	slowEnds map[string]bool // addresses and kinds of slow ends, until a stream ends otherwise
	refusals map[string]bool // services and reasons that were logged
	pathless bool            // the last path could not be read, which was logged
}

// maxRefusals bounds the refusals that are remembered, because a catalog may be full of them and an
// owner may make up new ones for ever.
const maxRefusals = 100

func newConnectionLog(logger *slog.Logger) connectionLog {
	return connectionLog{
		logger: loglimit.NewLogger(logger), ends: make(map[string]bool), slowEnds: make(map[string]bool), refusals: make(map[string]bool),
	}
}

// logConnected logs that a valid message came from the address, if that is news. The return of an
// owner is logged only for debugging, because another line says that its catalog is complete again.
func (j *connectionLog) logConnected(address string) {
	switch {
	case j.address == address:
		return
	case j.lost.IsZero():
		j.logger.Info("connected to owner", "address", address)
	default:
		j.logger.Debug("owner is back", "address", address, "after", time.Since(j.lost).Round(time.Second))
	}
	j.address = address
	clear(j.ends)
}

// logEnd logs the end of a session, if that is news. Parked says that the replica is parked now.
func (j *connectionLog) logEnd(address string, e sessionError, parked bool) {
	attributes := []any{"address", address, "error", e.Error()}
	if remedy := e.Remedy(); remedy != "" {
		attributes = append(attributes, "remedy", remedy)
	}
	key := address + " " + e.logKey()
	log, text := j.logger.Warn, "not connected to owner, still trying"
	if time.Since(j.lost) < catalog.Grace { // after that, the Sink warns
		log = j.logger.Info
	}
	again := j.ends[key] || e.verdict == slow && j.slowEnds[key]
	if j.address != "" {
		if e.verdict != slow {
			clear(j.slowEnds)
		}
		log, text = j.logger.Info, "stream of owner has ended, opening another one" // which may be no loss
		j.address, j.lost = "", time.Now()
	}
	switch {
	case e.verdict == park && e.after > 0 && again: // the same as some minutes ago
	case parked && e.after > 0:
		j.ends[key] = true
		j.logger.Error("owner is parked: the next attempt is in some minutes, or when the certificate, key or CA files or the configuration change", attributes...)
	case parked:
		j.logger.Error("owner is parked: there is no attempt until the certificate, key or CA files or the configuration change", attributes...)
	case e.verdict == park && e.after == 0:
		j.logger.Warn("there is no attempt at this address of the owner until the certificate, key or CA files or the configuration change", attributes...)
	case !again:
		j.ends[key], j.slowEnds[key] = true, true
		log(text, attributes...)
	}
}

// logCalmed logs that the owner ended the stream because of too many pings.
func (j *connectionLog) logCalmed(address string, interval time.Duration) {
	j.logger.Warn("the owner allows fewer pings (too_many_pings); their interval is doubled",
		"address", address, "keepalive", interval)
}

// logPath logs why the path in the header of a stream cannot be read, if the path before could be
// read.
func (j *connectionLog) logPath(address string, err error) {
	if err != nil && !j.pathless {
		j.logger.Warn("the owner sends a path of its services that cannot be read", "address", address, "error", err)
	}
	j.pathless = err != nil
}

// logRefusal logs a refused message once for each service and reason, as long as these are few.
func (j *connectionLog) logRefusal(address string, err *federation.InvalidError) {
	key := string(err.Reason) + " " + err.Service
	if j.refusals[key] {
		return
	}
	if len(j.refusals) >= maxRefusals {
		clear(j.refusals)
	}
	j.refusals[key] = true
	j.logger.Warn("message of owner refused", "address", address, "reason", string(err.Reason), "error", err)
}

package kubernetes

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// partPublisher turns the state of the cluster into the part of a catalog. It keeps the result for
// each exported Service, so that it publishes only differences. One goroutine uses it, which takes
// marked Services from clusterState in batches.
type partPublisher struct {
	*Source

	part     source.Part
	claims   export.Claims
	entries  map[objectName]exportState
	complete bool
	away     error     // why the cluster is away, as the part has it
	now      time.Time // of the update that is being made
}

// exportState is the result of evaluating an exported Service.
type exportState struct {
	encoded  *wire.EncodedService // nil where the Service is not published
	rule     export.Rule          // why the Service is not published, or not as a whole
	labelled time.Time            // since when the label exports it; zero where a ServiceExport does
}

func newPartPublisher(s *Source, part source.Part) *partPublisher {
	return &partPublisher{Source: s, part: part, entries: make(map[objectName]exportState)}
}

// publishLoop publishes until ctx ends.
func (p *partPublisher) publishLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.state.wake:
			p.publishRound()
		}
	}
}

// publishRound publishes what has changed, and then whether the cluster is away, so that it is back
// only once the changes are published.
func (p *partPublisher) publishRound() {
	batch, s := p.state.takeDirty(time.Now(), p.complete)
	if len(batch) > 0 || s.current && !p.complete {
		p.publishBatch(batch, s.missing)
	}
	if away := s.awayReason(p.away); away != p.away { //nolint:errorlint // whether it is the same value
		p.away = away
		p.part.SetAway(away)
	}
}

// publishBatch evaluates Services and those that turn out to depend on them, and passes the
// differences to the part at once.
func (p *partPublisher) publishBatch(batch sets.Set[objectName], missing []watchID) {
	var (
		changed []*wire.EncodedService
		gone    []string
		recount bool
		results = make(map[objectName]exportResult, len(batch))
	)
	p.now = time.Now()
	for len(batch) > 0 {
		for of := range batch {
			batch.Delete(of)
			if r, others, ok := p.evaluateService(of, missing); ok {
				results[of] = r
				batch.Insert(others...)
			}
		}
	}
	for of, r := range results {
		before := p.entries[of]
		if before.encoded != nil && r.encoded != nil && before.encoded.Equal(r.encoded) {
			r.encoded = before.encoded // the same pointer makes comparisons fast
		}
		results[of] = r
		if r.encoded != before.encoded {
			if r.encoded != nil {
				changed = append(changed, r.encoded)
			} else {
				gone = append(gone, p.serviceName(of))
			}
			p.writer.ForgetRefusals(of)
		}
		recount = recount || r.rule != before.rule
		if refusal := r.verdict.Refusal; refusal != nil && refusal.Detail != "" && r.rule != before.rule {
			p.log.Warn("export is refused", "service", of.String(), "rule", refusal.Rule, "reason", refusal.Message+"; "+refusal.Detail)
		}
		if r.exported {
			p.entries[of] = r.exportState
		} else {
			delete(p.entries, of)
		}
	}
	switch {
	case !p.complete: // all of the entries are new
		p.complete = true
		p.part.Replace(changed)
	case len(changed)+len(gone) > 0:
		p.part.Update(changed, gone)
	}
	if recount {
		p.part.SetRefused(p.refusedCounts())
	}
	for of, r := range results {
		p.noteVerdict(of, r)
	}
}

// refusedCounts returns how many Services are not published, or not as a whole, by rule.
func (p *partPublisher) refusedCounts() map[string]int {
	counts := make(map[string]int)
	for _, e := range p.entries {
		if e.rule != "" {
			counts[string(e.rule)]++
		}
	}
	return counts
}

// exportResult is the result of one evaluation of a Service.
type exportResult struct {
	exportState

	input    export.Input
	exported bool
	verdict  export.Verdict
}

// evaluateService returns the result for a Service, and which other Services have to be evaluated
// because of it. It reports false if something that the result depends on cannot be read.
func (p *partPublisher) evaluateService(of objectName, missing []watchID) (r exportResult, others []objectName, ok bool) {
	if r.input, r.exported = p.state.exportInput(of, !p.selector.Empty()); r.exported {
		if r.input.Export == nil {
			r.labelled = p.labelledSince(of, r.input.Service)
			r.input.Labelled = r.labelled
		}
		r.verdict = p.config.Translate(r.input)
	}
	if p.state.deferIfMissing(of, missing, r.input.Service != nil, r.verdict) {
		return r, nil, false
	}
	key := of.String()
	for _, k := range p.claims.Set(key, r.verdict) {
		namespace, name, _ := strings.Cut(k, "/")
		others = append(others, types.NamespacedName{Namespace: namespace, Name: name})
	}
	r.verdict = p.claims.Judge(key, r.verdict)
	if r.verdict.Service != nil {
		encoded, err := wire.NewEncoded(r.verdict.Service)
		if err != nil { // a verdict is valid
			r.verdict = export.Verdict{Refusal: &export.Finding{Rule: export.TooLarge, Message: err.Error()}}
		}
		r.encoded = encoded
	}
	if r.verdict.Refusal != nil {
		r.rule = r.verdict.Refusal.Rule
	} else if slices.ContainsFunc(r.verdict.Warnings, func(f export.Finding) bool { return f.Rule == export.TooManyEndpoints }) {
		r.rule = export.TooManyEndpoints // a part of the Service is not published
	}
	return r, others, true
}

// labelledSince returns since when a label exports a Service. The object does not say that, so it
// is when the source first saw the label: an old Service must not take a name from another one by a
// new label. For Services that had the label at the start, only their age is known.
func (p *partPublisher) labelledSince(of objectName, service *corev1.Service) time.Time {
	switch before := p.entries[of]; {
	case !before.labelled.IsZero():
		return before.labelled
	case !p.complete:
		return service.CreationTimestamp.Time
	}
	return p.now
}

// noteVerdict passes the verdict to the writer of conditions, if there is a ServiceExport.
func (p *partPublisher) noteVerdict(of objectName, r exportResult) {
	if r.input.Export == nil {
		p.writer.Forget(of)
		return
	}
	if s := r.verdict.Service; s != nil {
		r.verdict.Service = &federation.Service{FQDN: s.FQDN} // the rest need not be kept
	}
	p.writer.SetVerdict(of, r.verdict, r.input.Export)
}

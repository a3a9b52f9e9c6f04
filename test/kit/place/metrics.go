package place

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
)

// Samples are the metrics of a program, by series.
type Samples map[string]float64

// Scrape reads the metrics of a program. CoreDNS closes a connection on which it has not
// written them within five seconds, as on a busy machine: then it asks again. Nothing is promised
// of that: only the times of a machine that is too busy would be noted.
func Scrape(t testing.TB, address string) (samples Samples) {
	t.Helper()
	await.Until(t, await.Patience, func() string {
		var err error
		if samples, err = scrape(address); err != nil {
			return "metrics: " + err.Error()
		}
		return ""
	})
	return samples
}

func scrape(address string) (Samples, error) {
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", address, response.Status)
	}
	samples := make(Samples)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if i := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") { // values of labels may have spaces, too
			if samples[line[:max(i, 0)]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
				return nil, err
			}
		}
	}
	return samples, lines.Err()
}

// Of returns the values of the series of a metric that contain all of the labels.
func (s Samples) Of(metric string, labels ...string) (values []float64) {
	for series, value := range s {
		name, _, _ := strings.Cut(series, "{")
		if name == metric && !slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(series, label) }) {
			values = append(values, value)
		}
	}
	return values
}

// Sum adds up what Of returns.
func (s Samples) Sum(metric string, labels ...string) (sum float64) {
	for _, value := range s.Of(metric, labels...) {
		sum += value
	}
	return sum
}

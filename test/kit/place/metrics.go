package place

import (
	"bufio"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Samples are the metrics of a program, by series.
type Samples map[string]float64

// Scrape reads the metrics of a program.
func Scrape(t testing.TB, address string) Samples {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	must.Do(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the metrics of %s: %s", address, response.Status)
	}
	samples := make(Samples)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if i := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") { // values of labels may have spaces, too
			samples[line[:max(i, 0)]] = must.Get(strconv.ParseFloat(line[i+1:], 64))(t)
		}
	}
	must.Do(t, lines.Err())
	return samples
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

package realserver

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
)

// auditPolicy logs each request once: a watch when it begins, another when it ends.
// Those of the test itself and of the control plane are not logged, which would cost
// as much as to serve them.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: None, users: [admin, "system:apiserver", "system:anonymous"]}, {level: Metadata}]
`

func (c *Cluster) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// Requests returns how many requests each user but the test itself has made so far: by
// user, and by verb and resource, such as "watch services" and "patch
// serviceexports/status". It needs Options.Audit.
func (c *Cluster) Requests() (map[string]map[string]int, error) {
	file, err := os.Open(c.auditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	requests := make(map[string]map[string]int)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Stage string `json:"stage"`
			Verb  string `json:"verb"`
			User  struct {
				Username string `json:"username"`
			} `json:"user"`
			ObjectRef struct {
				Resource    string `json:"resource"`
				Subresource string `json:"subresource"`
			} `json:"objectRef"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // the line is being written
		}
		if (event.Verb == "watch") != (event.Stage == "ResponseStarted") {
			continue
		}
		what := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		if requests[event.User.Username] == nil {
			requests[event.User.Username] = make(map[string]int)
		}
		requests[event.User.Username][what]++
	}
	return requests, lines.Err()
}

// insecure returns a transport for a server that signs its own certificate.
func insecure() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}

package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

const (
	pause      = 200 * time.Millisecond // between two attempts
	oneAttempt = 10 * time.Second       // bounds one; machines are busy
)

// roles are the clients that are written in Go. The arguments are those of the programs in
// testdata: HOST PORT ATTEMPTS.
var roles = map[string]func(args []string) error{
	"http": func(args []string) error {
		client := &http.Client{Timeout: oneAttempt}
		return repeat(args, func(ctx context.Context, target string) (string, error) {
			return get(ctx, client, "http://"+target+"/")
		})
	},
	"grpc":       dialGRPC,
	"prometheus": runPrometheus,
}

// repeat prints the results of attempts.
func repeat(args []string, attempt func(ctx context.Context, target string) (string, error)) error {
	attempts, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for n := 1; ; n++ {
		address, err := attempt(context.Background(), net.JoinHostPort(args[0], args[1]))
		report(address, err)
		if n == attempts {
			return nil
		}
		<-ticker.C
	}
}

func report(address string, err error) {
	if err != nil {
		address = "! " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Fprintln(os.Stdout, address)
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	body, err := io.ReadAll(response.Body)
	return strings.TrimSpace(string(body)), err
}

// dialGRPC is a client of grpc-go. With RESOLUTION in the environment it resolves as often as
// that, and spreads its calls.
func dialGRPC(args []string) error {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if often, err := time.ParseDuration(os.Getenv("RESOLUTION")); err == nil {
		dns.SetMinResolutionInterval(often)
		options = append(options, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	}
	conn, err := grpc.NewClient("dns:///"+net.JoinHostPort(args[0], args[1]), options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	return repeat(args, func(ctx context.Context, _ string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, oneAttempt)
		defer cancel()
		var p peer.Peer
		if _, err := client.Check(ctx, new(healthpb.HealthCheckRequest), grpc.Peer(&p)); err != nil {
			return "", err
		}
		address, _, err := net.SplitHostPort(p.Addr.String())
		return address, err
	})
}

// runPrometheus runs a Prometheus that scrapes what the SRV records of the name say, and prints
// a line for each scrape. REFRESH in the environment is how often it resolves; without it, it
// does so as often as it does by default.
func runPrometheus(args []string) error {
	dir, err := os.MkdirTemp("", "prometheus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	refresh := ""
	if often := os.Getenv("REFRESH"); often != "" {
		refresh = ", refresh_interval: " + often
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: clients
  dns_sd_configs: [{names: [_http._tcp.%s]%s}]
`, args[0], refresh), 0o600); err != nil {
		return err
	}
	address, err := loopback.FreeAddress()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, "prometheus", "--config.file", config, "--storage.tsdb.path", dir, "--web.listen-address", address)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		_ = server.Wait() // it was killed
	}()
	client, last := &http.Client{Timeout: oneAttempt}, make(map[string]time.Time)
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for range ticker.C {
		body, err := get(ctx, client, "http://"+address+"/api/v1/targets?state=active")
		if err != nil {
			continue // it starts
		}
		lines, err := scraped(body, last)
		if err != nil {
			return err
		}
		for _, line := range lines {
			fmt.Fprintln(os.Stdout, line)
			if args[2] == "1" && !strings.HasPrefix(line, "!") {
				return nil
			}
		}
	}
	return nil
}

// scraped returns a line for each scrape since the last call.
func scraped(body string, last map[string]time.Time) (lines []string, err error) {
	var reply struct {
		Data struct {
			ActiveTargets []struct {
				ScrapeURL  string    `json:"scrapeUrl"`
				LastError  string    `json:"lastError"`
				LastScrape time.Time `json:"lastScrape"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		return nil, err
	}
	if len(reply.Data.ActiveTargets) == 0 {
		return []string{"! no target"}, nil
	}
	for _, target := range reply.Data.ActiveTargets {
		if !target.LastScrape.After(last[target.ScrapeURL]) {
			continue
		}
		last[target.ScrapeURL] = target.LastScrape
		if target.LastError != "" {
			lines = append(lines, "! "+target.LastError)
			continue
		}
		label, _, _ := strings.Cut(strings.TrimPrefix(target.ScrapeURL, "http://"), ".")
		lines = append(lines, strings.ReplaceAll(label, "-", "."))
	}
	return lines, nil
}

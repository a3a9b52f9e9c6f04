package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver/dns"
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
	"grpc": dialGRPC,
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

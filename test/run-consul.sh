#!/bin/sh
# Run a server of Consul, an owner that publishes what is registered there, and CoreDNS, which
# answers for it on 127.0.0.1:1053. What DNS says is shown while instances come, fail and go, and while
# Consul is away. It runs until Ctrl-C; with ONCE=1 it ends after that.
# Run it in the root of the repository, after `make build`, with the path of Consul in CONSUL.

name=run-consul
owner_address=127.0.0.1:8008
dns_address=127.0.0.1:1053
consul_address=127.0.0.1:8500
status_address=127.0.0.1:9156
service=web.consul.fed.example

owner=
coredns=
consul=

end_all() { end "$coredns" "$owner" "$consul"; }

all_live() {
	must_live owner "$owner"
	must_live coredns "$coredns"
	must_live consul "$consul"
}

. test/functions.sh

# answer prints what CoreDNS answers for the service, in short.
answer() {
	bin/lookup -edns -server "$dns_address" "$service" A 2>/dev/null | awk '
		$1 == ";" && $3 == "A:" { code = $4 }
		$4 == "A"               { data = data " " $5 }
		$1 == ";" && $2 == "EDE" && $3 == 3 { note = ", stale" }
		END { print (code == "" ? "no reply" : code) data note }'
}

# is PATTERN succeeds when the answer is like that.
is() { expr "$(answer)" : "$1\$" >/dev/null; }

# show WHAT PATTERN prints the answer once it is like that.
show() {
	await "the answer $2" is "$2"
	printf '  %-52s %s\n' "$1" "$(answer)"
}

start_consul() {
	"$CONSUL" agent -config-file "$run/consul.json" >>"$run/consul.log" 2>&1 &
	consul=$!
	await "Consul has a leader" sh -c "'$CONSUL' catalog services 2>/dev/null | grep -q consul"
}

# reads_consul succeeds while the source of the owner is not away.
reads_consul() {
	bin/federationctl status -o json --at "$status_address" >"$run/status.json" 2>/dev/null && ! grep -q '"away"' "$run/status.json"
}

prepare "$owner_address" "$dns_address" "$consul_address"
cat >"$run/consul.json" <<END
{
  "server": true, "bootstrap_expect": 1, "node_name": "n1", "datacenter": "dc1", "data_dir": "$PWD/$run/consul",
  "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true, "log_level": "warn", "performance": {"raft_multiplier": 1},
  "ports": {"http": 8500, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_lan": 18301, "serf_wan": 18302, "server": 18300}
}
END

# instance ID ADDRESS CHECK writes the registration of an instance, whose check is an HTTP port, or none.
instance() {
	cat >"$run/$1.hcl" <<END
service {
  id      = "$1"
  name    = "web"
  address = "$2"
  port    = 8080
  tags    = ["http"]
  check   = { id = "check-$1", name = "check of $1", tcp = "$3", interval = "1s", timeout = "1s" }
}
END
	"$CONSUL" services register "$run/$1.hcl" >/dev/null
}

echo "Starting a server of Consul on $consul_address"
start_consul
echo "Starting an owner on $owner_address with corefile-examples/consul/owner.yaml"
cp corefile-examples/consul/owner.yaml "$run/"
bin/federationctl serve --config "$run/owner.yaml" >"$run/owner.log" 2>&1 &
owner=$!
echo "Starting CoreDNS on $dns_address with corefile-examples/consul/Corefile"
bin/coredns -conf corefile-examples/consul/Corefile >"$run/coredns.log" 2>&1 &
coredns=$!

echo
echo "What CoreDNS answers for $service:"
show "nothing is registered in Consul" 'NXDOMAIN'
instance web-1 192.0.2.1 "$owner_address"
show "web-1 is registered" 'NOERROR 192.0.2.1'
instance web-2 192.0.2.2 "$dns_address"
show "web-2 is registered" 'NOERROR 192.0.2.[12] 192.0.2.[12]'
instance web-2 192.0.2.2 127.0.0.1:9
show "the check of web-2 fails" 'NOERROR 192.0.2.1'
instance web-2 192.0.2.2 "$dns_address"
show "the check of web-2 passes again" 'NOERROR 192.0.2.[12] 192.0.2.[12]'
"$CONSUL" services deregister -id web-2 >/dev/null
show "web-2 is deregistered" 'NOERROR 192.0.2.1'
kill -9 "$consul"
wait "$consul" 2>/dev/null || :
consul=
pause 3
show "Consul is killed; its services stay for the lifetime" 'NOERROR 192.0.2.1'
start_consul
await "the owner reads Consul again" reads_consul # what goes before that may have been lost, and so stays for ten minutes
show "Consul is back" 'NOERROR 192.0.2.1'
"$CONSUL" services deregister -id web-1 >/dev/null
show "web-1 is deregistered" 'NXDOMAIN'

if [ "${ONCE:-}" = 1 ]; then
	exit 0
fi
cat <<END

All of it is up. In another terminal:

  $CONSUL services register -name api -address 192.0.2.3 -port 443 -tag https
  bin/lookup -server $dns_address api.consul.fed.example A SRV TXT     (or dig, where it is installed)

The logs are in $run. Ctrl-C ends it.
END

forever

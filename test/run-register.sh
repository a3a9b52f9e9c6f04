#!/bin/sh
# Run an owner with which programs register, CoreDNS, which answers for it on
# 127.0.0.1:1053, and two small programs. One of them is killed, and the answers are shown
# over the seconds. It runs until Ctrl-C; with ONCE=1 it ends after that.
# Run it in the root of the repository, after `make build`.

name=run-register
sample=corefile-examples/registration
owner_address=127.0.0.1:8008
dns_address=127.0.0.1:1053
first_address=127.0.0.1:8081
second_address=127.0.0.1:8082
service=hello.fed.example
ttl=4 # seconds

owner=
coredns=
first=
second=
programs=

# Programs go first, so that they can say goodbye to the owner.
end_all() {
	end "$first" "$second"
	# shellcheck disable=SC2086 # several processes are several words
	end $programs
	end "$coredns" "$owner"
}

all_live() {
	must_live owner "$owner"
	must_live coredns "$coredns"
	must_live first "$first"
}

. test/functions.sh

# ports prints the ports at which the service is now, in order.
ports() {
	bin/lookup -server "$dns_address" "_http._tcp.$service" SRV 2>/dev/null |
		awk '$4 == "SRV" { print $7 }' | sort | tr '\n' ' '
}

# at PORTS succeeds when the service is at these ports.
at() { [ "$(ports)" = "$1" ]; }

# start NAME ADDRESS runs a program in the background, and federationctl register beside it,
# whose processes are in $program and $started.
start() {
	bin/hello -listen "$2" -name "$1" >"$run/$1-program.log" 2>&1 &
	program=$!
	programs="$programs $program"
	bin/federationctl register --server "$owner_address" \
		--cert "$run/consumer.pem" --key "$run/consumer-key.pem" --ca "$run/ca.pem" \
		--service "$service" --node "http://$2" --instance "$1" --ttl "${ttl}s" \
		--check "http://$2/" --check-interval 1s --drain 1s >"$run/$1.log" 2>&1 &
	started=$!
}

prepare "$owner_address" "$dns_address" "$first_address" "$second_address"

echo "Starting an owner on $owner_address, with which programs may register"
cp "$sample/owner.yaml" "$sample/registrations.yaml" "$run/"
bin/federationctl serve --config "$run/owner.yaml" >"$run/owner.log" 2>&1 &
owner=$!

echo "Starting CoreDNS on $dns_address with $sample/Corefile"
bin/coredns -conf "$sample/Corefile" >"$run/coredns.log" 2>&1 &
coredns=$!

echo "Starting two programs on $first_address and $second_address, which know nothing of all that:"
echo "federationctl register stands beside each of them, checks it over HTTP, and tells the owner of it"
start first "$first_address"
first=$started
start second "$second_address"
second=$started
victim=$program

# An owner that has never run is silent until programs had the time to come back.
await "the service at both programs" at "8081 8082 "
echo
echo "Both are registered. What DNS says of the service, and where its programs are:"
bin/lookup -server "$dns_address" "$service" A SRV TXT
echo
echo "What the owner publishes of them:"
echo
bin/federationctl watch "$owner_address" --once \
	--cert "$run/consumer.pem" --key "$run/consumer-key.pem" --ca "$run/ca.pem"

echo
echo "Now the second program dies, with all that stood beside it, as if its machine had lost its power."
echo "It had promised to say every $((ttl / 2)) seconds that it lives, and it is believed for $ttl seconds:"
kill -9 "$second" "$victim" 2>/dev/null || :
wait "$second" "$victim" 2>/dev/null || :
second=
for elapsed in 0 1 2 3 4 5 6; do
	printf '  %s s after it died, the service is at the ports %s\n' "$elapsed" "$(ports)"
	pause 1
done
await "the service at the first program only" at "8081 "
echo "Nobody had to clean up behind it."

echo
echo "Now the second program starts again, and then is stopped as one should be, with SIGTERM:"
start second "$second_address"
second=$started
await "the service at both programs" at "8081 8082 "
printf '  it has started:     the service is at the ports %s\n' "$(ports)"
kill -TERM "$second"
await "the service at the first program only" at "8081 "
printf '  it is told to stop: the service is at the ports %s\n' "$(ports)"
wait "$second" 2>/dev/null || :
second=
echo "It said goodbye, so nobody waited for anything."

echo
echo "Now the owner dies, and starts again. CoreDNS keeps what it knows, and the first program comes back:"
kill -9 "$owner"
wait "$owner" 2>/dev/null || :
printf '  the owner is dead:  the service is at the ports %s\n' "$(ports)"
bin/federationctl serve --config "$run/owner.yaml" >>"$run/owner.log" 2>&1 &
owner=$!
for elapsed in 1 2 3; do
	pause 1
	printf '  %s s after its start: the service is at the ports %s\n' "$elapsed" "$(ports)"
done
await "the service at the first program only" at "8081 "

if [ "${ONCE:-}" = 1 ]; then
	exit 0
fi
cat <<END

All of it is up, but for the second program. In another terminal:

  dig @127.0.0.1 -p 1053 _http._tcp.$service SRV     (where dig is installed; or bin/lookup _http._tcp.$service SRV)
  bin/federationctl watch $owner_address --cert $run/consumer.pem --key $run/consumer-key.pem --ca $run/ca.pem
  kill -STOP $first; sleep 3; kill -CONT $first     (a hiccup that nobody notices)

Edit $run/registrations.yaml, which says who may register what, and watch the program go.
The logs are in $run. Ctrl-C ends it.
END

forever

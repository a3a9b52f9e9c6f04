module github.com/hamlet-federation/coredns-federation/test/indexbench

go 1.26.0

require (
	github.com/benbjohnson/immutable v0.4.3
	github.com/cilium/statedb v0.4.6
	github.com/google/go-cmp v0.7.0
	github.com/hamlet-federation/coredns-federation v0.0.0-00010101000000-000000000000
	github.com/hashicorp/go-immutable-radix/v2 v2.1.0
	github.com/tidwall/btree v1.8.2
)

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/exp v0.0.0-20260529124908-c761662dc8c9 // indirect
)

replace github.com/hamlet-federation/coredns-federation => ../..

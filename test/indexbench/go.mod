module github.com/hamlet-federation/coredns-federation/test/indexbench

go 1.26.0

require (
	github.com/benbjohnson/immutable v0.4.3
	github.com/google/go-cmp v0.7.0
	github.com/hashicorp/go-immutable-radix/v2 v2.1.0
	github.com/hashicorp/golang-lru/v2 v2.0.0 // indirect
	github.com/tidwall/btree v1.8.2
	golang.org/x/exp v0.0.0-20221215174704-0915cd710c24 // indirect
)

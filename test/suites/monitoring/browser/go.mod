module github.com/hamlet-federation/coredns-federation/test/suites/monitoring/browser

go 1.26.0

require (
	github.com/chromedp/cdproto v0.0.0-20260321001828-e3e3800016bc
	github.com/chromedp/chromedp v0.15.1
)

require (
	github.com/chromedp/sysutil v1.1.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260214004413-d219187c3433 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
	github.com/gobwas/ws v1.4.0 // indirect
	github.com/hamlet-federation/coredns-federation v0.0.0
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/hamlet-federation/coredns-federation => ../../../..

package browser

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// tab is a tab of a browser. It fails the test when the page asks anybody but its own
// server for anything, and when the browser has anything to complain about.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string // of the server
	axe  string // the source of axe

	refused string // an entry of the browser's log that is meant

	mu     sync.Mutex
	asked  int
	faults []string
}

// chromium is the browser of all tests: its start is what takes longest.
var chromium struct {
	once sync.Once
	ctx  context.Context
	end  context.CancelFunc
	err  error
}

// browser starts the browser, once, and returns the context of its first tab.
func browser(t *testing.T) context.Context {
	t.Helper()
	chromium.once.Do(func() {
		path := cmp.Or(os.Getenv("CHROMIUM"), "chromium")
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(patience),
			chromedp.NoSandbox, // tests run as root in containers, and the pages are our own
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true))
		allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocator)
		chromium.ctx, chromium.err = ctx, chromedp.Run(ctx)
		chromium.end = func() {
			cancel()
			end()
		}
	})
	if chromium.err != nil {
		t.Fatalf("%v; apt-get install chromium, or say where it is in CHROMIUM", chromium.err)
	}
	return chromium.ctx
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.end != nil {
		chromium.end()
	}
	os.Exit(code)
}

// open opens a tab for the pages of a server.
func open(t *testing.T, base string) *tab {
	t.Helper()
	axe := must.Get(os.ReadFile("node_modules/axe-core/axe.min.js"))(t) // make e2e-browser installs it
	first := browser(t)
	// A window of its own: what is behind another tab is not drawn.
	id := must.Get(target.CreateTarget("about:blank").WithNewWindow(true).Do(cdp.WithExecutor(first, chromedp.FromContext(first).Browser)))(t)
	ctx, cancel := chromedp.NewContext(first, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base, axe: string(axe)}
	chromedp.ListenTarget(ctx, b.heard)
	b.run(network.Enable(), log.Enable(), runtime.Enable(), emulation.SetFocusEmulationEnabled(true)) // windows share the focus
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.asked == 0 || len(b.faults) > 0 {
			t.Errorf("of %d requests, and of the pages, the browser says %q", b.asked, b.faults)
		}
	})
	return b
}

func (b *tab) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asked++
		if url := event.Request.URL; !strings.HasPrefix(url, b.base+"/") && url != "data:," {
			b.faults = append(b.faults, "request of "+url)
		}
	case *log.EventEntryAdded:
		if !strings.Contains(event.Entry.Text, cmp.Or(b.refused, "status of 400")) { // a page that is meant
			b.faults = append(b.faults, event.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, event.ExceptionDetails.Error())
	}
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if b.asked == 0 { // the first run makes the browser, which must outlive it
		ctx = b.ctx
	}
	must.Do(b.t, chromedp.Run(ctx, actions...))
}

// follow runs what makes the browser go to another page, and waits for that page.
func (b *tab) follow(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	must.Get(chromedp.RunResponse(ctx, actions...))(b.t)
}

// unfold opens whatever is folded up: a few of many services will do.
func (b *tab) unfold() {
	b.t.Helper()
	b.run(chromedp.Evaluate(`[...document.querySelectorAll("details")].slice(0, 40).forEach(d => d.open = true)`, nil))
}

// location returns the address of the page.
func (b *tab) location() (at string) {
	b.t.Helper()
	b.run(chromedp.Location(&at))
	return at
}

// text returns the text of an element, as a reader sees it.
// It is read in one step, as the page may refresh itself between two.
func (b *tab) text(selector string) string {
	b.t.Helper()
	var text string
	b.run(chromedp.Poll(fmt.Sprintf("document.querySelector(%q)?.innerText", selector), &text, chromedp.WithPollingTimeout(patience)))
	return text
}

// says fails unless an element has all of the words.
func (b *tab) says(selector string, words ...string) {
	b.t.Helper()
	text := b.text(selector)
	for _, word := range words {
		if !strings.Contains(text, word) {
			b.t.Errorf("%s says %q, expected %q in it", selector, text, word)
		}
	}
}

// looks are the ways in which a page is looked at.
var looks = []struct {
	name   string
	width  int64
	scheme string
	whole  bool // unfolded too, and by axe: both widths and both schemes in half the time
}{
	{"desktop-light", 1280, "light", true},
	{"desktop-dark", 1280, "dark", false},
	{"phone-light", 360, "light", false},
	{"phone-dark", 360, "dark", true},
}

// keep writes what a test leaves to be looked at.
func keep(t *testing.T, name string, content []byte) {
	t.Helper()
	folder := filepath.Join(bin, "browser")
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(folder, name), content, 0o644))
}

// look keeps screenshots of a page, as it is at load and unfolded, and has axe look at the
// latter. At load the page is so many pixels long at most on
// a phone; 0: as long as it likes.
func (b *tab) look(name, path string, most int64) {
	b.t.Helper()
	for _, l := range looks {
		var width, height int64
		var found, shot []byte
		b.run(
			emulation.SetDeviceMetricsOverride(l.width, 800, 1, l.width < 500),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}}),
			chromedp.Navigate(b.base+path),
			chromedp.Evaluate(`document.documentElement.scrollWidth`, &width),
			chromedp.Evaluate(`document.documentElement.scrollHeight`, &height),
			chromedp.FullScreenshot(&shot, 100),
		)
		keep(b.t, name+"-"+l.name+".png", shot)
		if most > 0 && l.width < 500 && height > most {
			b.t.Errorf("%s, %s: the page is %d pixels long, and to be %d at most", path, l.name, height, most)
		}
		if !l.whole {
			continue
		}
		b.unfold()
		b.run(
			chromedp.Evaluate(`document.documentElement.scrollWidth`, &width),
			chromedp.FullScreenshot(&shot, 100),
			chromedp.Evaluate(b.axe+"; 0", nil),
			chromedp.Evaluate(`axe.run({resultTypes: ["violations"]}).then(r => JSON.stringify({
				passes: r.passes.length,
				violations: r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html + " " + n.failureSummary).join("; ")),
			}))`, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }),
			emulation.ClearDeviceMetricsOverride(),
		)
		keep(b.t, name+"-unfolded-"+l.name+".png", shot)
		if width > l.width {
			b.t.Errorf("%s, %s: the page is %d pixels wide, and the window %d", path, l.name, width, l.width)
		}
		var text string
		var result struct {
			Passes     int
			Violations []string
		}
		must.Do(b.t, json.Unmarshal(found, &text))
		must.Do(b.t, json.Unmarshal([]byte(text), &result))
		if result.Passes == 0 {
			b.t.Errorf("%s, %s: axe has checked nothing", path, l.name)
		}
		for _, violation := range result.Violations {
			b.t.Errorf("%s, %s: axe says %s", path, l.name, violation)
		}
	}
}

// card returns the selector of the card whose heading is a text: CSS cannot ask for one.
func (b *tab) card(heading string) string {
	b.t.Helper()
	var found bool
	mark := fmt.Sprintf("card-%x", heading)
	b.run(chromedp.Evaluate(fmt.Sprintf(`(() => {
		const card = [...document.querySelectorAll(".card")].find(c => c.querySelector("h3")?.textContent.includes(%q));
		if (card) card.id = %q;
		return !!card;
	})()`, heading, mark), &found))
	if !found {
		b.t.Fatalf("there is no card %q in: %s", heading, b.text("main"))
	}
	return "#" + mark
}

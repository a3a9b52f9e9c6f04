package board

import (
	"fmt"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/catalog"
)

// Size is that of a terminal.
type Size struct{ Width, Height int }

// The columns of the table, in their order.
const (
	columnFQDN = iota
	columnName
	columnInstances
	columnEndpoints
	columns
)

var titles = [columns]string{"FQDN", "NAME", "INSTANCES", "ENDPOINTS"}

// given up, in this order, are the columns that a narrow terminal has no room
// for: the fqdn and where it leads to are what most people look for.
var givenUp = [...]int{columnName, columnInstances, columnEndpoints}

const (
	gap      = 2  // between columns, and before the first: a mark and a space
	minWidth = 10 // of a column that is cut
	maxWidth = 200
)

// The colours, as SGR sequences (ECMA-48 section 8.3.117).
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// Lines returns the board as it looks at now on a terminal of that size: no
// more lines than it has, none of them wider. What does not fit is cut, and
// counted. It costs as much as what is shown, beside the sorting of what is new.
func (b *Board) Lines(size Size, colours bool, now time.Time) []string {
	paint := func(colour, text string) string {
		if !colours || colour == "" {
			return text
		}
		return colour + text + plain
	}
	state, colour := b.state()
	first := cut(state+b.summary(now), size.Width)
	if rest, ok := strings.CutPrefix(first, state); ok {
		first = paint(colour, state) + rest
	}
	lines := []string{first}
	message := b.reason
	if message == "" {
		message, colour = b.note, yellow
	}
	for _, line := range wrap(ascii(message), size.Width, 1+size.Height/8) {
		lines = append(lines, paint(colour, line))
	}
	rows := b.sorted()
	room := size.Height - len(lines) - 1 // for rows, below the titles
	if len(rows) > 0 && room > 0 {
		shown := rows
		if len(rows) > room {
			shown = rows[:room-1]
		}
		lines = append(lines, b.table(shown, size.Width, paint)...)
		if more := len(rows) - len(shown); more > 0 {
			lines = append(lines, cutEllipsis(fmt.Sprintf("and %d more", more), size.Width))
		}
	}
	return lines[:min(len(lines), max(size.Height, 1))]
}

// state returns the state in a word, and its colour.
func (b *Board) state() (text, colour string) {
	switch b.catalog.Status().State {
	case catalog.Synced:
		return "synced", green
	case catalog.Syncing:
		return "syncing", yellow
	case catalog.Stale, catalog.Expired:
		return "lost", red
	case catalog.Connecting:
	}
	return "connecting", yellow
}

// summary is what the first line says behind the state.
func (b *Board) summary(now time.Time) string {
	status := b.catalog.Status()
	parts := []string{"", b.address, Count(status.Services, "service")}
	if b.reason != "" {
		parts[0] = " for " + age(now.Sub(b.since))
	}
	if held := status.Stale; held > 0 && held < status.Services {
		parts = append(parts, fmt.Sprintf("%d stale", held))
	}
	if b.told > 0 {
		parts = append(parts, fmt.Sprintf("%d refused", b.told))
	}
	if r := b.last.row; r != nil {
		parts = append(parts, fmt.Sprintf("last change %s ago: %c %s", age(now.Sub(b.last.at)), b.last.mark,
			strings.TrimSuffix(r.service.FQDN.String(), ".")))
	}
	return strings.Join(parts, "  ")
}

// table returns the titles and the rows, as wide as the terminal at most.
func (b *Board) table(rows []*row, width int, paint func(colour, text string) string) []string {
	cells := make([][columns]string, len(rows))
	for i, r := range rows {
		c := &cells[i]
		c[columnName], c[columnFQDN], c[columnInstances], c[columnEndpoints] = Cells(r.service)
	}
	// Columns never grow narrower again: a table that jumps is hard to read.
	for column := range columns {
		b.widths[column] = max(b.widths[column], len(titles[column]))
		for i := range cells {
			b.widths[column] = min(max(b.widths[column], len(cells[i][column])), maxWidth)
		}
	}
	widths := fit(b.widths, width)
	lines := []string{paint(bold, format(still, titles, widths, width))}
	for i, r := range rows {
		colour := map[byte]string{added: green, changed: yellow, gone: red}[r.mark]
		lines = append(lines, paint(colour, format(r.mark, cells[i], widths, width)))
	}
	return lines
}

// fit narrows columns, the widest first, until they fit; 0 leaves a column out.
func fit(widths [columns]int, width int) [columns]int {
	total := func(least bool) int {
		sum := 0
		for _, w := range widths {
			if least {
				w = min(w, minWidth)
			}
			if w > 0 {
				sum += gap + w
			}
		}
		return sum
	}
	for _, column := range givenUp {
		if total(true) > width {
			widths[column] = 0
		}
	}
	for over := total(false) - width; over > 0; over-- {
		widest := 0
		for column, w := range widths {
			if w > widths[widest] {
				widest = column
			}
		}
		widths[widest]--
	}
	return widths
}

// format returns one line of the table.
func format(mark byte, cells [columns]string, widths [columns]int, width int) string {
	line := strings.Builder{}
	line.WriteByte(mark)
	pad := gap - 1
	for column, cell := range cells {
		w := widths[column]
		if w <= 0 {
			continue
		}
		line.WriteString(strings.Repeat(" ", pad))
		line.WriteString(cut(cell, w))
		pad = gap + max(w-len(cell), 0)
	}
	if width < gap {
		return ""
	}
	return strings.TrimRight(line.String(), " ")
}

// cut returns text, which is ASCII, or what fits of it.
func cut(text string, width int) string {
	if len(text) <= width {
		return text
	}
	if width <= 0 {
		return ""
	}
	return text[:width-1] + "…"
}

// wrap breaks text between words into lines, and cuts the last of them.
func wrap(text string, width, most int) []string {
	var lines []string
	for len(text) > width && len(lines)+1 < most {
		i := strings.LastIndexByte(text[:max(width, 0)+1], ' ')
		if i <= 0 {
			break // a word that is wider
		}
		lines = append(lines, text[:i])
		text = text[i+1:]
	}
	return append(lines, cut(text, width))
}

// cutEllipsis returns the text behind an ellipsis, as far as it fits.
func cutEllipsis(text string, width int) string {
	if width < 2 {
		return cut("..", width)
	}
	return "… " + cut(text, width-2)
}

// ascii replaces what may move the cursor or is not one column wide.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Count returns a number of things, in words.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// age returns a duration in its largest unit.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

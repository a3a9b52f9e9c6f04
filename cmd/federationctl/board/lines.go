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

// givenUp are the columns that are left out, in this order, when the terminal is too
// narrow. The fqdn always stays, and its endpoints stay longest.
var givenUp = [...]int{columnName, columnInstances, columnEndpoints}

const (
	gap      = 2  // between columns, and before the first one for the mark and a space
	minWidth = 10 // of a column that is cut, before another one is left out
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

// Lines returns the board at now for a terminal of that size: at most as many lines
// as it has, at least one, and none wider than it is. Rows that do not fit are
// counted in the last line. The cost is that of the rows that are shown, and of
// sorting in new ones.
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

// state returns the state as one word, and its colour.
func (b *Board) state() (text, colour string) {
	switch b.status.State {
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

// summary returns what the first line says after the state.
func (b *Board) summary(now time.Time) string {
	parts := []string{"", b.address, Count(b.status.Services, "service")}
	if b.reason != "" {
		parts[0] = " for " + age(now.Sub(b.since))
	}
	if stale := b.status.Stale; stale > 0 && stale < b.status.Services {
		parts = append(parts, fmt.Sprintf("%d stale", stale))
	}
	if b.hops > 1 {
		parts = append(parts, fmt.Sprintf("through %d owners", b.hops))
	}
	if b.resumed && b.status.State == catalog.Synced {
		parts = append(parts, "resumed")
	}
	if n := b.status.NotImported; n > 0 {
		parts = append(parts, fmt.Sprintf("%d not imported", n))
	}
	if b.refused > 0 {
		parts = append(parts, fmt.Sprintf("%d refused", b.refused))
	}
	if r := b.last.row; r != nil {
		parts = append(parts, fmt.Sprintf("last change %s ago: %c %s", age(now.Sub(b.last.at)), b.last.mark,
			strings.TrimSuffix(r.service.FQDN.String(), ".")))
	}
	return strings.Join(parts, "  ")
}

// table returns the titles and the rows, at most as wide as the terminal.
func (b *Board) table(rows []*row, width int, paint func(colour, text string) string) []string {
	cells := make([][columns]string, len(rows))
	for i, r := range rows {
		c := &cells[i]
		c[columnName], c[columnFQDN], c[columnInstances], c[columnEndpoints] = Cells(r.service)
	}
	// Columns never become narrower again: a table that jumps is hard to read.
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

// fit narrows columns, the widest first, until they fit the width. A column of width
// 0 is left out.
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

// cut returns the text, which is ASCII, or as much of it as fits and an ellipsis.
func cut(text string, width int) string {
	if len(text) <= width {
		return text
	}
	if width <= 0 {
		return ""
	}
	return text[:width-1] + "…"
}

// wrap breaks the text between words into lines, and cuts the last one when there
// are as many as most.
func wrap(text string, width, most int) []string {
	var lines []string
	for len(text) > width && len(lines)+1 < most {
		i := strings.LastIndexByte(text[:max(width, 0)+1], ' ')
		if i <= 0 {
			break // a word that is wider than the terminal
		}
		lines = append(lines, text[:i])
		text = text[i+1:]
	}
	return append(lines, cut(text, width))
}

// cutEllipsis returns an ellipsis and as much of the text as fits behind it.
func cutEllipsis(text string, width int) string {
	if width < 2 {
		return cut("..", width)
	}
	return "… " + cut(text, width-2)
}

// ascii replaces characters that may move the cursor or are not one column wide.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Count returns a number with its noun, in the plural unless n is 1.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// age returns a duration in the largest unit that fits.
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

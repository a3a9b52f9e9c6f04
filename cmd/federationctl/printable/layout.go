package printable

import "strings"

// LineWidth is how wide lines are where no terminal says it.
const LineWidth = 80

// gap is what stands between two columns.
const gap = "  "

// Columns lays out rows of cells in columns as wide as they need, each row as a line. Those
// whose title begins with a space are numbers, and stand on the right. The last column ends
// with a whole word where a line would be wider than Width; no other one is cut. Cells are
// printable ASCII.
type Columns struct {
	Titles []string
	Width  int

	widths []int // of all columns but the last, so far
}

// Lines returns the lines of rows, below those that were laid out before: columns only grow.
// The titles stand above the first.
func (c *Columns) Lines(rows [][]string) []string {
	last, first := len(c.Titles)-1, c.widths == nil
	if first {
		titles := make([]string, len(c.Titles))
		for i, title := range c.Titles {
			titles[i] = strings.TrimPrefix(title, " ")
		}
		rows = append([][]string{titles}, rows...)
		c.widths = make([]int, last)
	}
	for _, row := range rows {
		for i := range last {
			c.widths[i] = max(c.widths[i], len(row[i]))
		}
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var line strings.Builder
		for i, of := range c.widths {
			cell, space := row[i], strings.Repeat(" ", of-len(row[i]))
			if strings.HasPrefix(c.Titles[i], " ") {
				cell, space = space+cell, ""
			}
			line.WriteString(cell + space + gap)
		}
		text := row[last]
		if n > 0 || !first { // the title is whole
			text = fit(text, c.Width-line.Len())
		}
		line.WriteString(text)
		lines[n] = strings.TrimRight(line.String(), " ")
	}
	return lines
}

// fit cuts a text behind a word where there is no room for all of it. What would say too
// little is left out.
func fit(text string, room int) string {
	const rest, least = " ...", 9
	if len(text) <= room {
		return text
	}
	end := strings.LastIndexByte(text[:max(0, min(len(text), room-len(rest)+1))], ' ')
	if end < least {
		return strings.TrimSpace(rest[:min(len(rest), max(0, room+1))])
	}
	return text[:end] + rest
}

// Wrap breaks a text between words into lines of up to width characters, all but the first
// with an indent. A word that is longer has a line of its own.
func Wrap(text string, width int, indent string) string {
	lead := text[:len(text)-len(strings.TrimLeft(text, " "))]
	var all strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			all.WriteString(lead)
			column = len(lead)
		case column+1+len(word) > width:
			all.WriteString("\n" + indent)
			column = len(indent)
		default:
			all.WriteByte(' ')
			column++
		}
		all.WriteString(word)
		column += len(word)
	}
	return all.String()
}

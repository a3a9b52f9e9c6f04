package printable

import "strings"

// LineWidth is how wide lines are where no terminal says it.
const LineWidth = 80

// gap is what stands between two columns.
const gap = "  "

// FormatTable lays out rows of cells below titles, in columns as wide as they need, each row as a line.
// Columns whose title begins with a space are numbers, and stand on the right. The last column ends
// with a whole word where a line would be wider than width; no other one is cut. Cells are
// printable ASCII.
func FormatTable(titles []string, rows [][]string, width int) []string {
	last := len(titles) - 1
	widths := make([]int, last)
	lines := make([]string, 0, len(rows)+1)
	for i, title := range titles[:last] {
		widths[i] = len(strings.TrimPrefix(title, " "))
		for _, row := range rows {
			widths[i] = max(widths[i], len(row[i]))
		}
	}
	for n, row := range append([][]string{titles}, rows...) {
		var line strings.Builder
		for i, of := range widths {
			cell := strings.TrimPrefix(row[i], " ")
			space := strings.Repeat(" ", of-len(cell))
			if strings.HasPrefix(titles[i], " ") {
				cell, space = space+cell, ""
			}
			line.WriteString(cell + space + gap)
		}
		text := row[last]
		if n > 0 { // the title is whole
			text = cutToFit(text, width-line.Len())
		}
		lines = append(lines, strings.TrimRight(line.String()+text, " "))
	}
	return lines
}

// cutToFit cuts a text behind a word where there is no room for all of it. What would say too
// little is left out.
func cutToFit(text string, room int) string {
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

// WrapText breaks a text between words into lines of up to width characters, all but the first
// with an indent. A word that is longer has a line of its own.
func WrapText(text string, width int, indent string) string {
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

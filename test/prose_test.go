package test

import (
	"regexp"
	"strings"
	"testing"
)

// A page of the manual has sentences of fourteen words on average, and none that has to be
// read twice.
const (
	averageSentence = 14
	longestSentence = 30
)

var (
	listItem    = regexp.MustCompile(`^ *(?:\*|\d+\.) `)
	sentenceEnd = regexp.MustCompile(`[.!?:]\s+[A-Z*"(\[]|\z`)
	word        = regexp.MustCompile(`\S*[\pL\pN]\S*`)
)

// sentences returns those of a text in Markdown: of its paragraphs, items of lists and cells of tables.
func sentences(prose string) (all []string) {
	var block []string
	flush := func() {
		text := link.ReplaceAllString(strings.Join(block, " "), "$1")
		text = code.ReplaceAllString(text, "X")
		for block = nil; text != ""; {
			at := sentenceEnd.FindStringIndex(text)
			end := min(at[0]+1, len(text))
			if len(word.FindAllString(text[:end], -1)) > 3 { // fewer are a label
				all = append(all, text[:end])
			}
			text = strings.TrimSpace(text[end:])
		}
	}
	for line := range strings.SplitSeq(prose, "\n") {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "|"):
			for cell := range strings.SplitSeq(line, " | ") {
				flush()
				block = append(block, strings.Trim(cell, "| "))
			}
			flush()
		case heading.MatchString(line), strings.TrimSpace(line) == "":
			flush()
		default:
			if listItem.MatchString(line) {
				flush()
				line = listItem.ReplaceAllString(line, "")
			}
			block = append(block, strings.TrimSpace(line))
		}
	}
	flush()
	return all
}

// TestDocumentSentences counts the words of sentences in what users read.
func TestDocumentSentences(t *testing.T) {
	for _, d := range documents(t) {
		if d.path != "README.md" && !strings.HasPrefix(d.path, "docs/") && !strings.HasPrefix(d.path, "deploy/") && d.path != "cmd/federationctl/README.md" {
			continue
		}
		words, all := 0, sentences(d.prose)
		for _, s := range all {
			n := len(word.FindAllString(s, -1))
			if words += n; n > longestSentence {
				t.Errorf("%s has a sentence of %d words: %s", d.path, n, s)
			}
		}
		if len(all) > 0 && words > averageSentence*len(all) {
			t.Errorf("%s has sentences of %.1f words on average", d.path, float64(words)/float64(len(all)))
		}
	}
}

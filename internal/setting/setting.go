// Package setting knows what can be set in a Corefile and in the files of owners and importers, and what each
// of that means: for errors, for the reference in the documents, for 'federationctl explain' and
// for editors.
//
// [Properties] is the table of the Corefile. The keys of a file are those of the struct that
// package problem reads the file into, and their tag doc explains them; see [SchemaOf].
package setting

import (
	"cmp"
	"slices"
	"strings"
)

// Setting is a property of a Corefile, or a key of a file.
type Setting struct {
	In       string   // which file: Corefile, owner.yaml, import.yaml or rules.yaml; several, with commas between, if it means the same in each
	Paths    []string // where it stands in there, such as catalogs.sources.kubernetes.zone; several if it means the same in each place
	Takes    string   // of a property
	Default  string   // as it would stand in the file; "" for none
	Required bool
	Doc      string
	Keys     []string // below it
}

// PropertySettings returns the properties of the Corefile.
func PropertySettings() (all []Setting) {
	for _, p := range Properties {
		all = append(all, Setting{"Corefile", []string{p.Name}, p.Takes, p.Default, p.Name == "owner", p.Doc, nil})
	}
	return all
}

// Find returns the settings with a path, or else those with a path that ends with it.
func Find(all []Setting, path string) []Setting {
	var exact, ending []Setting
	for _, s := range all {
		if slices.Contains(s.Paths, path) {
			exact = append(exact, s)
		} else if slices.ContainsFunc(s.Paths, func(p string) bool { return strings.HasSuffix(p, "."+path) }) {
			ending = append(ending, s)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return ending
}

// ShortName returns the shortest end of the first path by which Find finds the setting alone. A key
// with one place only is named with the key above, as few would know where it stands.
func (s Setting) ShortName(all []Setting) string {
	words := strings.Split(s.Paths[0], ".")
	for n := len(words) - min(len(words), 2) + min(len(s.Paths)-1, 1); n > 0; n-- {
		name := strings.Join(words[n:], ".")
		if found := Find(all, name); len(found) == 1 && found[0].Paths[0] == s.Paths[0] {
			return name
		}
	}
	return s.Paths[0]
}

// Nearest returns the names that someone may have meant by a word, the most likely first. A third
// of the letters may be wrong. Of names and words with dots, what is behind the last one counts.
func Nearest(word string, names []string) []string {
	last := func(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
	word = strings.ToLower(last(word))
	distance := func(name string) int { return editDistance(word, last(name)) }
	near := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return distance(name) > min(len(word), 9)/3 })
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return near
}

// editDistance returns how many letters of a have to be inserted, removed, changed or swapped
// with the next one to have b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1) // of each prefix of a, the distances to each prefix of b
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
				continue
			}
			rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], 1+rows[i-2][j-2])
			}
		}
	}
	return rows[len(a)][len(b)]
}

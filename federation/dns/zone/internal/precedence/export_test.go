package precedence

// Looked returns how many offers, or wants of many offers, a change at a name looks at.
func (w *Writer) Looked(name, origin string) (n int) {
	for range w.wants(name, origin) {
		n++
	}
	return n
}

package history

// IsCut reports whether the log begins anew with the next version.
func (r *Recent) IsCut() bool { return r.cut }

package export

// Claims decides between the exports of a cluster that want one fqdn: the oldest has
// it, and of two of one age the one with the lesser key. It is not safe for
// concurrent use. The zero value is ready for use.
type Claims struct{}

// Set notes the verdict of the export with the given key, such as
// namespace/service, and returns the keys of all exports whose standing is another
// now: [Claims.Judge] has a new answer for them. Where a verdict changes nothing
// between exports, it returns nothing.
func (c *Claims) Set(key string, v Verdict) (changed []string) { return nil }

// Remove forgets the export, and returns what Set does.
func (c *Claims) Remove(key string) (changed []string) { return nil }

// Judge returns v, or its refusal where another export than key has the fqdn.
func (c *Claims) Judge(key string, v Verdict) Verdict { return v }

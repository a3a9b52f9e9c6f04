package catalogfile

import (
	"crypto/rand"
	"crypto/sha256"
	"hash"
)

// digest stands for the text of one service in a file.
type digest [16]byte

// digester makes digests. Each has a secret of its own: nobody who writes services can
// look for two texts with one digest.
type digester struct {
	secret [16]byte
	hash   hash.Hash
	sum    [sha256.Size]byte
}

func newDigester() digester {
	d := digester{hash: sha256.New()}
	_, _ = rand.Read(d.secret[:]) // which never fails
	return d
}

func (d *digester) of(text []byte) digest {
	d.hash.Reset()
	d.hash.Write(d.secret[:])
	d.hash.Write(text)
	return digest(d.hash.Sum(d.sum[:0])[:len(digest{})])
}

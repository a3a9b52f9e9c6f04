package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// What is beside the file. The lock is a file of its own, as the file is replaced. It has
// the last version that was stored, with the marker of the file and a checksum: an older
// file that is put back in the place of the newest one is known by that.
const (
	lockSuffix    = ".lock"
	newSuffix     = ".new" // while it is written
	damagedSuffix = ".damaged"
	mode          = 0o600
)

// resolve returns the path of the file that path leads to.
func resolve(path string) (string, error) {
	file, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s is a symbolic link to a file that does not exist", path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// open locks and reads the file, makes it ready for records, and reports whether nothing is
// missing in it. The lock is to be closed.
func (s *Store) open() (complete bool, err error) {
	path, err := resolve(s.config.Path)
	if err != nil {
		return false, err
	}
	lock, err := lockFile(path + lockSuffix)
	if err != nil {
		return false, err
	}
	s.path, s.lock = path, lock
	if complete, err = s.load(); err != nil {
		return false, errors.Join(err, lock.Close())
	}
	s.note()
	return complete, nil
}

// load reads the file, and reports whether nothing is missing in it.
func (s *Store) load() (complete bool, err error) {
	found := contents{entries: make(map[node.Key]entry)}
	data, info, err := file.Read(s.path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found.lost = "there was no file"
	case err != nil:
		return false, err
	default:
		found.stamp = info.ModTime() // where no record says it
		found.read(data)
	}
	young := s.use(&found)
	s.ready(found.whole > 0 && !found.damaged && young)
	return found.lost == "", nil
}

// use makes what was found in the file that of the store. It reports whether the file
// is young enough.
func (s *Store) use(found *contents) (young bool) {
	age := time.Since(found.stamp)
	young = s.config.Lifetime == 0 || age <= s.config.Lifetime
	found.age()
	if s.config.Lifetime > 0 {
		oldest := time.Now().Add(-s.config.Lifetime).Unix()
		maps.DeleteFunc(found.entries, func(_ node.Key, e entry) bool { return e.heard < oldest })
	}
	switch {
	case !young:
		clear(found.entries)
		found.lost = cmp.Or(found.lost, fmt.Sprintf("it is %v old, and its nodes are not used", age.Round(time.Second)))
	case found.lost != "":
	case !s.isNewest(found):
		found.lost = "it may be older than what was stored last, such as a copy that was put back"
	case found.partial:
		found.lost = "the owner before had not converged"
	case !found.ended && found.boot != boot():
		found.lost = "the machine has failed, which may have taken what was stored last"
	}
	s.partial = time.Time{}
	if found.lost != "" {
		s.partial = time.Now().Add(s.config.Convergence)
		s.logger.Info("the journal may not be complete", "reason", found.lost, "nodes", len(found.entries))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.live, s.version, s.marker = found.entries, found.live(), found.version, found.marker
	s.size, s.torn, s.damaged = found.whole, found.torn, found.damaged
	return young
}

// last returns what the lock says of a file whose last version is known.
func (m marker) last(version int64) []byte {
	b := binary.LittleEndian.AppendUint64(bytes.Clone(m[:]), uint64(version)) //nolint:gosec // read back in the same way
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

// isNewest reports whether the lock has no later version than the file, and is of that file.
func (s *Store) isNewest(found *contents) bool {
	says := make([]byte, len(marker{}.last(0)))
	if _, err := s.lock.ReadAt(says, 0); err != nil {
		return false
	}
	version := int64(binary.LittleEndian.Uint64(says[markerBytes:])) //nolint:gosec // written in the same way
	return bytes.Equal(says, found.marker.last(version)) && version <= found.version
}

// note has the lock say what the last version is. It is not synced: what a machine that
// fails loses is found out by its boot.
func (s *Store) note() {
	s.mu.Lock()
	says, open := s.marker.last(s.version), s.file != nil
	s.mu.Unlock()
	if open {
		_, err := s.lock.WriteAt(says, 0)
		s.complain("cannot note what was stored last", err)
	}
}

// ready opens the file for records if that is possible, and has it written anew
// otherwise. Why neither can be done is what Commit returns.
func (s *Store) ready(appends bool) {
	if appends {
		f, err := os.OpenFile(s.path, os.O_RDWR, 0)
		if err == nil {
			_ = f.Chmod(mode) // it may be one that the operator has copied
			s.mu.Lock()
			s.file = f
			s.mu.Unlock()
			s.stamp(stamp, true)
			return
		}
	}
	s.complain("cannot write the file anew", s.compact())
}

// contents is what is in a file.
type contents struct {
	entries map[node.Key]entry // whose heard is an index of heard until age is called
	heard   []int64            // when the owners were last there that have ended before the last one
	version int64
	stamp   time.Time // the last one
	boot    string    // of it; "" if none is known
	partial bool      // whether nodes may have been missing then
	ended   bool      // whether nothing comes after the end of an owner
	marker  marker    // zero: none
	whole   int64     // where the last whole record ends; 0: there is not even a header
	torn    bool      // whether there is more behind it
	damaged bool      // whether there is more that is wrong
	lost    string    // why something may be missing; "": nothing is
}

// read reads a file, and passes over what is no record. What is wrong with it is in c.
func (c *contents) read(data []byte) {
	m, sound, err := readHeader(data)
	if err != nil {
		c.damaged, c.lost = true, err.Error()
		return
	}
	c.marker, c.whole, c.torn = m, int64(headerBytes), !sound
	damaged := false // whether there is a whole record behind something that is none
	for at := headerBytes; at < len(data); {
		payload := m.record(data[at:])
		if payload == nil {
			c.torn = true
			next := bytes.Index(data[at+1:], m[:])
			if next < 0 {
				break
			}
			at += 1 + next
			continue
		}
		size := frameBytes + len(payload)
		at += size
		c.whole, c.torn, damaged = int64(at), false, damaged || c.torn
		if err := c.add(kind(payload[0]), int64(binary.LittleEndian.Uint64(payload[1:])), payload[leastPayload:], size); err != nil { //nolint:gosec // written in the same way
			c.damaged, c.lost = true, "a record says what no owner stores: "+err.Error()
		}
	}
	switch {
	case damaged:
		c.damaged, c.lost = true, "it is damaged"
	case c.lost == "" && c.torn:
		c.lost = "its last record is not whole"
	}
}

// add adds what a whole record says, of which there are so many bytes.
func (c *contents) add(k kind, version int64, data []byte, size int) (err error) {
	c.version = max(c.version, version)
	c.ended = k == end
	switch k {
	case put:
		var n *node.Node
		if n, err = node.Parse(data); err == nil {
			c.entries[n.Key] = entry{n, version, int64(size), int64(len(c.heard))}
		}
	case gone:
		var key node.Key
		if key, err = parseKey(data); err == nil {
			delete(c.entries, key)
		}
	case stamp, end:
		err = c.addStamp(data)
	default:
		err = fmt.Errorf("kind %q", byte(k))
	}
	return err
}

// addStamp adds what Store.stampOf has written.
func (c *contents) addStamp(data []byte) error {
	if len(data) < 8+1 {
		return io.ErrUnexpectedEOF
	}
	if data[8]&isBegin != 0 {
		c.heard = append(c.heard, c.stamp.Unix())
	}
	c.stamp = time.Unix(int64(binary.LittleEndian.Uint64(data)), 0) //nolint:gosec // written in the same way
	c.partial, c.boot = data[8]&isPartial != 0, string(data[8+1:])
	return nil
}

// age notes with each entry when its provider was last there: with the owner that has put it,
// as every owner puts anew what its providers have.
func (c *contents) age() {
	c.heard = append(c.heard, c.stamp.Unix())
	for key, e := range c.entries {
		e.heard = c.heard[e.heard]
		c.entries[key] = e
	}
}

// live returns the bytes of the records of all entries.
func (c *contents) live() (bytes int64) {
	for _, e := range c.entries {
		bytes += e.bytes
	}
	return bytes
}

// compact writes the file anew: beside the old one, which it replaces when all of it is
// on the disk. Changes go on meanwhile.
func (s *Store) compact() error {
	s.mu.Lock()
	entries, version, from := s.snapshot(), s.version, s.size
	if s.file == nil {
		_, _ = rand.Read(s.marker[:]) // which never fails
	}
	s.mu.Unlock()
	err := s.rewrite(entries, version, from)
	if err != nil {
		_ = os.Remove(s.path + newSuffix)
		s.mu.Lock()
		s.broken = err
		s.mu.Unlock()
	}
	return err
}

// rewrite is compact for these entries, and what has come behind from.
func (s *Store) rewrite(entries []entry, version, from int64) error {
	_ = os.Remove(s.path + newSuffix) // of a process that was killed
	f, err := os.OpenFile(s.path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	size, err := s.fill(f, entries, version)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = s.install(f, size, from)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return syncDir(filepath.Dir(s.path))
}

// fill writes a header and the entries, and returns the bytes that these are.
func (s *Store) fill(f *os.File, entries []entry, version int64) (int64, error) {
	w := bufio.NewWriterSize(f, 1<<20)
	b := s.marker.appendHeader(nil)
	size, now, heard := int64(0), time.Now(), int64(-1)
	for _, e := range entries {
		if e.heard != heard { // those that wait for their providers come first
			heard = e.heard
			at := now
			if heard != 0 {
				at = time.Unix(heard, 0)
			}
			b = s.marker.append(b, stamp, version, s.stampOf(at, true))
		}
		b = s.marker.append(b, put, e.version, e.node.Append)
		size += int64(len(b))
		if _, err := w.Write(b); err != nil {
			return 0, err // which every later one would be
		}
		b = b[:0]
	}
	if heard != 0 {
		b = s.marker.append(b, stamp, version, s.stampOf(now, true))
	}
	size += int64(len(b))
	_, err := w.Write(b)
	return size, errors.Join(err, w.Flush())
}

// install puts a file in the place of the old one, with what the old one has behind
// from. It closes the old one.
func (s *Store) install(f *os.File, size, from int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		if _, err := f.Seek(size, io.SeekStart); err != nil {
			return err
		}
		tail, err := io.Copy(f, io.NewSectionReader(s.file, from, s.size-from))
		if err != nil {
			return err
		}
		size += tail
	}
	if s.damaged {
		s.logger.Warn("the journal is damaged; it is set aside", "aside", setAside(s.path))
	}
	if err := os.Rename(s.path+newSuffix, s.path); err != nil {
		return err
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.broken, s.size, s.torn, s.damaged, s.unsaved = f, nil, size, false, false, true
	s.wakeUp()
	return nil
}

// setAside keeps a damaged file under another name, for people, and returns that name.
// The former one goes.
func setAside(path string) string {
	aside := path + damagedSuffix
	_ = os.Remove(aside)
	if err := os.Link(path, aside); err != nil { // so that there always is a file at path
		_ = os.Rename(path, aside)
	}
	return aside
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

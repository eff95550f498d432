package nodetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Server serves a file system with one empty directory, Below. The kernel asks for its names and
// attributes each time.
type Server struct {
	device *os.File
	mu     sync.Mutex // held while it hangs
	hangs  bool
	ended  chan struct{}
}

// Below is the name of the directory in the file system of a Server.
const Below = "below"

// Serve mounts a file system with a server at dir, which must exist.
func Serve(dir string) (*Server, error) { return serve("tarn-test", dir, "fuse.tarn-test", "") }

// ServeBlock mounts a file system on a block device. The kernel reports the end of such a file
// system to the server, so the last unmount waits for its answer.
func ServeBlock(device, dir string) (*Server, error) {
	return serve(device, dir, "fuseblk", ",blksize=512")
}

func serve(source, dir, kind, more string) (*Server, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other%s", fd, more)
	if err := unix.Mount(source, dir, kind, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("mount at %s: %w", dir, err)
	}
	// Create the os.File only now: Go's poller sees no events of a device that was opened before
	// its mount.
	s := &Server{device: os.NewFile(uintptr(fd), "/dev/fuse"), ended: make(chan struct{})}
	go s.run()
	return s, nil
}

// Hang stops all answers until the server continues or ends.
func (s *Server) Hang() {
	s.mu.Lock()
	s.hangs = true
}

// GoOn makes the server answer again.
func (s *Server) GoOn() {
	s.hangs = false
	s.mu.Unlock()
}

// End ends the server as its death would: pending and later calls fail with "not connected".
func (s *Server) End() {
	_ = s.device.Close()
	if s.hangs {
		s.GoOn()
	}
	<-s.ended
}

func (s *Server) run() {
	defer close(s.ended)
	request := make([]byte, 1<<17)
	for {
		n, err := s.device.Read(request)
		if errors.Is(err, unix.ENOENT) { // the caller no longer waits
			continue
		}
		if err != nil {
			return
		}
		s.mu.Lock()
		_, err = s.device.Write(reply(request[:n]))
		s.mu.Unlock()
		if errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// reply answers a request. The numbers and sizes are those of linux/fuse.h.
func reply(request []byte) []byte {
	order := binary.NativeEndian
	const (
		lookup, getattr, statfs, opendir, readdir, closeDir, access, start = 1, 3, 17, 27, 28, 29, 34, 26
		header                                                             = 16
	)
	folder := func(body []byte, node uint64) {
		order.PutUint64(body, node)
		order.PutUint32(body[60:], unix.S_IFDIR|0o755)
		order.PutUint32(body[64:], 2)
	}
	var body []byte
	var code unix.Errno
	switch order.Uint32(request[4:]) {
	case start:
		body = make([]byte, 64)
		order.PutUint32(body, 7)
		order.PutUint32(body[4:], 31)
		order.PutUint32(body[20:], 1<<16)
	case getattr:
		body = make([]byte, 16+88) // valid for no time
		folder(body[16:], order.Uint64(request[16:]))
	case lookup:
		if string(bytes.TrimRight(request[40:], "\x00")) != Below {
			code = unix.ENOENT
			break
		}
		body = make([]byte, 40+88) // valid for no time
		order.PutUint64(body, 2)
		folder(body[40:], 2)
	case statfs:
		body = make([]byte, 80)
	case opendir:
		body = make([]byte, 16)
	case readdir, closeDir, access:
	default:
		code = unix.ENOENT
	}
	answer := order.AppendUint32(nil, uint32(header+len(body))) //nolint:gosec // of a few bytes
	answer = order.AppendUint32(answer, uint32(-int32(code)))   //nolint:gosec // as the kernel wants it
	answer = order.AppendUint64(answer, order.Uint64(request[8:]))
	return append(answer, body...)
}

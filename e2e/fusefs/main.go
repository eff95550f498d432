// Command fusefs serves a file system at the directory it is given, until it is killed. The file
// system has one file, "greeting", and a directory "sub" with the same file. It is a volume with a
// server, for the cases that kill servers. It must not know of anything else.
//
//	fusefs FOLDER TEXT
//
// The file contains TEXT. When the file system is mounted, the command prints "mounted".
package main

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The requests it answers, numbered as in linux/fuse.h.
const (
	opLookup   = 1
	opForget   = 2
	opGetattr  = 3
	opOpen     = 14
	opRead     = 15
	opStatfs   = 17
	opRelease  = 18
	opFlush    = 25
	opInit     = 26
	opOpendir  = 27
	opReaddir  = 28
	opCloseDir = 29
	opAccess   = 34
	opForgets  = 42
)

const (
	rootNode = 1
	fileNode = 2
	subNode  = 3
	// inHeader and outHeader are the sizes of the header of a request and of an answer.
	inHeader, outHeader = 40, 16
	name, sub           = "greeting\x00", "sub\x00" // as in a lookup
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: fusefs DIRECTORY TEXT")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]+"\n"); err != nil {
		fmt.Fprintln(os.Stderr, "fusefs:", err)
		os.Exit(1)
	}
}

func serve(folder, text string) error {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fd := int(device.Fd())
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("fusefs", folder, "fuse.fusefs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount at %s: %w", folder, err)
	}
	fmt.Println("mounted")
	request := make([]byte, 1<<20)
	for {
		n, err := unix.Read(fd, request)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil {
			return err // ENODEV: it was unmounted
		}
		if reply := answer(request[:n], text); reply != nil {
			if _, err := unix.Write(fd, reply); err != nil && err != unix.ENOENT {
				return err
			}
		}
	}
}

// answer gives the answer to a request, nil where it needs none.
func answer(request []byte, text string) []byte {
	order := binary.NativeEndian
	op, unique, node := order.Uint32(request[4:]), order.Uint64(request[8:]), order.Uint64(request[16:])
	body, code := content(op, node, request[inHeader:], text)
	if op == opForget || op == opForgets {
		return nil
	}
	reply := order.AppendUint32(nil, uint32(outHeader+len(body)))
	reply = order.AppendUint32(reply, uint32(-int32(code)))
	reply = order.AppendUint64(reply, unique)
	return append(reply, body...)
}

func content(op uint32, node uint64, in []byte, text string) ([]byte, unix.Errno) {
	order := binary.NativeEndian
	switch op {
	case opInit:
		out := make([]byte, 64)
		order.PutUint32(out, 7)
		order.PutUint32(out[4:], 31)
		order.PutUint32(out[20:], 1<<16)
		return out, 0
	case opLookup:
		found := uint64(fileNode)
		switch {
		case string(in) == sub && node == rootNode:
			found = subNode
		case string(in) != name:
			return nil, unix.ENOENT
		}
		out := make([]byte, 40)
		order.PutUint64(out, found)
		return append(out, attributes(found, text)...), 0
	case opGetattr:
		return append(make([]byte, 16), attributes(node, text)...), 0
	case opOpen, opOpendir:
		return make([]byte, 16), 0
	case opRead:
		offset, size := order.Uint64(in[8:]), uint64(order.Uint32(in[16:]))
		rest := text[min(offset, uint64(len(text))):]
		return []byte(rest[:min(size, uint64(len(rest)))]), 0
	case opStatfs:
		return make([]byte, 80), 0
	case opRelease, opCloseDir, opFlush, opReaddir, opAccess, opForget, opForgets:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

// attributes are the attributes of a directory or the file.
func attributes(node uint64, text string) []byte {
	order := binary.NativeEndian
	out := make([]byte, 88)
	order.PutUint64(out, node)
	mode, links := uint32(unix.S_IFDIR|0o755), uint32(2)
	if node == fileNode {
		mode, links = unix.S_IFREG|0o444, 1
		order.PutUint64(out[8:], uint64(len(text)))
	}
	order.PutUint32(out[60:], mode)
	order.PutUint32(out[64:], links)
	return out
}

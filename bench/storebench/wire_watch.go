// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// watcher is a gRPC client of one connection. It reads all streams in one loop,
// or makes one call at a time. A usual gRPC client has one or two goroutines
// per stream. Thousands of them would be slower than the server, and the
// benchmark would measure the client.
type watcher struct {
	conn *tls.Conn
	addr string

	mu         sync.Mutex // serializes writes
	out        *bufio.Writer
	framer     *http2.Framer // reads from conn, writes to out
	nextStream uint32

	partial map[uint32][]byte // incomplete messages, by stream
}

// call makes a call with one message and waits for its end. No other goroutine
// may read from the connection.
func (w *watcher) call(path string, message []byte) error {
	stream, err := w.open(path, message, true)
	if err != nil {
		return err
	}
	for {
		f, err := w.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID != stream || !f.StreamEnded() {
				continue
			}
			for _, h := range f.Fields {
				if h.Name == "grpc-status" && h.Value != "0" {
					return fmt.Errorf("%s: status %s: %v", path, h.Value, f.Fields)
				}
			}
			return nil
		default:
			if err := w.handleControl(f); err != nil {
				return err
			}
		}
	}
}

// window is how much the server may send on a connection in one run, in bytes.
const window = 1 << 30

func dialWatcher(ctx context.Context, c *contender) (*watcher, error) {
	config := c.tls.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriter(conn)
	w := &watcher{
		conn: conn.(*tls.Conn), addr: c.addr, out: out, framer: http2.NewFramer(out, conn),
		nextStream: 1, partial: make(map[uint32][]byte),
	}
	w.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = out.WriteString(http2.ClientPreface)
	if err == nil {
		err = w.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	}
	if err == nil {
		err = w.framer.WriteWindowUpdate(0, window)
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// open opens a stream and sends one message. It closes the sending direction if
// last is true.
func (w *watcher) open(path string, message []byte, last bool) (stream uint32, err error) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSizeLimit(0)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", path}, {":authority", w.addr},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}); err != nil {
			return 0, err
		}
	}
	err = w.write(func() error {
		stream, w.nextStream = w.nextStream, w.nextStream+2
		err := w.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true,
		})
		return errors.Join(err, w.framer.WriteData(stream, last, grpcFrame(message)))
	})
	return stream, err
}

// send sends another message on a stream.
func (w *watcher) send(stream uint32, message []byte) error {
	return w.write(func() error { return w.framer.WriteData(stream, false, grpcFrame(message)) })
}

// grpcFrame returns a message with the gRPC prefix: the flag of an uncompressed
// message, and the length.
func grpcFrame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// read calls got with each message until the connection or a stream ends.
func (w *watcher) read(got func(stream uint32, message []byte)) error {
	for {
		f, err := w.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			w.messages(f.StreamID, f.Data(), got)
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				err = fmt.Errorf("stream %d ended: %v", f.StreamID, f.Fields)
			}
		default:
			err = w.handleControl(f)
		}
		if err != nil {
			return err
		}
	}
}

// handleControl responds to the control frames of HTTP/2.
func (w *watcher) handleControl(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return w.write(func() error { return w.framer.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return w.write(func() error { return w.framer.WritePing(true, f.Data) })
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("stream %d was reset: %v", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return errors.New("server sent GOAWAY")
	}
	return nil
}

func (w *watcher) write(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(do(), w.out.Flush())
}

// messages calls got with each complete message of a stream, and keeps an
// incomplete one.
func (w *watcher) messages(stream uint32, data []byte, got func(uint32, []byte)) {
	if p := w.partial[stream]; len(p) > 0 {
		data = append(p, data...)
		delete(w.partial, stream)
	}
	for len(data) >= 5 {
		end := 5 + int(binary.BigEndian.Uint32(data[1:5]))
		if len(data) < end {
			break
		}
		got(stream, data[5:end])
		data = data[end:]
	}
	if len(data) > 0 {
		w.partial[stream] = bytes.Clone(data)
	}
}

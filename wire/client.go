package wire

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
)

// CallMessage is Call for the commands whose headers are generated messages: request is sent, the answer read into
// response.
func (c *Conn) CallMessage(ctx context.Context, command Command, request, response proto.Message) error {
	header, err := proto.Marshal(request)
	if err != nil {
		return Errorf(CodeInvalid, "the request cannot be encoded: %v", err)
	}
	f, err := c.Call(ctx, command, header, nil)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(f.Header, response); err != nil {
		return Errorf(CodeMalformed, "the answer of %v cannot be read: %v", c.RemoteAddr(), err)
	}
	return nil
}

// Hello says hello, which must be the first request. The versions are set here.
func (c *Conn) Hello(ctx context.Context, r *HelloRequest) (*HelloResponse, error) {
	r.VersionMin, r.VersionMax = FrameVersion, FrameVersion
	response := new(HelloResponse)
	if err := c.CallMessage(ctx, CommandHello, r, response); err != nil {
		return nil, err
	}
	if response.Version != FrameVersion {
		return nil, Errorf(CodeUnsupportedVersion, "%v answered with version %d", c.RemoteAddr(), response.Version)
	}
	return response, nil
}

// KeepAlive pings the peer whenever nothing was sent or nothing was read for the time given, and closes the connection
// when nothing was read for three times as long. It may be called once, and takes no goroutine.
func (c *Conn) KeepAlive(every time.Duration) {
	var sent, read uint64
	silent := 0
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.cause != nil {
		return
	}
	c.mu.keepAlive = time.AfterFunc(every, func() {
		c.mu.Lock()
		sentNow, closed := c.mu.framesOut, c.mu.cause != nil
		c.mu.Unlock()
		if closed {
			return
		}
		readNow := c.bytesRead.Load()
		if silent++; readNow != read || c.Handling() {
			silent = 0
		}
		if silent >= 3 {
			c.Close(Errorf(CodeDisconnected, "%v is silent for %v", c.RemoteAddr(), 3*every))
			return
		}
		if silent > 0 || sentNow == sent {
			// A queue too full for a ping has something to be answered in it.
			if _, err := c.Start(CommandPing, nil, nil, func(Frame, error) {}); err == nil {
				c.FlushShared()
				sentNow++
			}
		}
		sent, read = sentNow, readNow
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.mu.cause == nil {
			c.mu.keepAlive.Reset(every)
		}
	})
}

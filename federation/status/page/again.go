package page

import (
	"fmt"
	"log/slog"
	"net"
)

// Again is Listen for a configuration with the address of s, whose port s has. Until one
// of them ends, either takes connections. The one that stays loses none.
func (s *Server) Again(c Config, logger *slog.Logger) (*Server, error) {
	again, err := c.open(logger)
	if err != nil {
		return nil, err
	}
	port, ok := s.listener.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("status: the port of %s cannot be shared", c.Address)
	}
	file, err := port.File()
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	defer file.Close()
	if again.listener, err = net.FileListener(file); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return again, nil
}
